"""Records: JSON objects that are created once, the store that reads and creates them, and state that is rewritten.

The first process to create a record decides; others read it. A record names its format, and an unreadable one is
rejected by name: acting on partial data would be worse than stopping. State (`StateRecord`), such as a lease or a
heartbeat, is replaced again and again by its owner, so each reader decides what a damaged one means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, DeltaworksError

_MAX_PROBLEMS = 3

#: A time in a record, stored as `datetime.isoformat` writes it. A stored time without a zone is in UTC.
Instant = Annotated[
    datetime,
    BeforeValidator(lambda value: parse_iso(value) if isinstance(value, str) else value),
    PlainSerializer(datetime.isoformat, when_used="json"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """Display name of a record class, and the conditions of its errors.

    The record is damaged, has another format or other fields: `unreadable_condition`. The record was deleted between
    its creation by another process and our read: `vanished_condition`.
    """

    noun: str
    unreadable_condition: str
    hint: str
    error: type[DeltaworksError] = ContractError
    vanished_condition: str = "RECORD_VANISHED"
    vanished_hint: str = "Run it again."


class RecordPart(BaseModel):
    """A part of a record: frozen, and without unknown fields.

    Values of `Any` fields must be plain JSON: tuples are read back as lists.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed.

        Raises:
            ValidationError: unknown field, or value of another type.
        """
        return type(self)(**{**self.__dict__, **changes})


class UnversionedRecord(RecordPart):
    """A record without `format`. Its class declares its kind."""

    kind: ClassVar[RecordKind]
    indent: ClassVar[int | None] = None

    def encode(self) -> bytes:
        """Encodes the record as JSON."""
        return self.model_dump_json(indent=self.indent).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Self:
        """Parses the object stored at `key`.

        Raises:
            DeltaworksError: of the kind's class and condition, for damaged objects and unknown fields.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise cls.unreadable_error(key, _describe_problems(error)) from error

    @classmethod
    def unreadable_error(cls, key: str, reason: str) -> DeltaworksError:
        """Builds the error for an unreadable object."""
        kind = cls.kind
        message = f"{key} is not a valid {kind.noun}: {reason}."
        return kind.error(kind.unreadable_condition, message, hint=kind.hint)


class Record(UnversionedRecord):
    """A record with a `format` number. A subclass for a later format redeclares the field."""

    format: int = 1

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Self:
        """Parses the object stored at `key`.

        Raises:
            DeltaworksError: with the class and condition of this kind of record, for damaged objects and unknown
                fields.
        """
        expected_format = cls.model_fields["format"].default
        try:
            record = cls.model_validate_json(data)
        except ValidationError as error:
            raise cls.unreadable_error(
                key, _describe_format_mismatch(data, expected_format) or _describe_problems(error)
            ) from error
        if "format" not in record.model_fields_set or record.format != expected_format:
            raise cls.unreadable_error(key, _describe_format_mismatch(data, expected_format))
        return record


class StateRecord(RecordPart):
    """State that its owner rewrites. Fields of other releases are ignored, so that two releases can run side by side
    during an upgrade. A subclass with a format declares `format: Literal[<number>]`.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore", ser_json_inf_nan="constants")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed. New values are not validated: a process must not fail because of
        the state that it reports.

        Raises:
            TypeError: unknown field.
        """
        if unknown := changes.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update=changes)

    def encode(self) -> bytes:
        """Encodes the state as JSON."""
        # Not by pydantic: texts of errors may contain lone surrogates, which it can neither write nor read.
        return json.dumps(self.model_dump(mode="json", warnings=False)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parses the output of `encode`.

        Raises:
            ValueError: the object is damaged, or of another format.
        """
        try:
            return cls.model_validate(json.loads(data))
        except ValidationError as error:
            raise ValueError(f"it is not a valid {cls.__name__}: {_describe_problems(error)}") from error

    @classmethod
    def decode_or_none(cls, data: bytes) -> Self | None:
        """Parses the output of `encode`; None if the object is damaged, or of another format."""
        try:
            return cls.decode(data)
        except ValueError:
            return None

    @classmethod
    def read(cls, objects: ObjectStore, key: str) -> Self | None:
        """Reads the stored state; None if there is none.

        Raises:
            ValueError: the object is damaged, or of another format.
        """
        item = objects.get(key)
        return None if item is None else cls.decode(item.data)

    @classmethod
    def read_or_none(cls, objects: ObjectStore, key: str) -> Self | None:
        """Reads the stored state; None if it is missing or damaged, or of another format."""
        item = objects.get(key)
        return None if item is None else cls.decode_or_none(item.data)


def _describe_format_mismatch(data: bytes, expected_format: int) -> str:
    """Describes how the format differs; empty if it does not, or cannot be read."""
    try:
        record = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(record, dict) or record.get("format") == expected_format:
        return ""
    return f"format {record['format']} is not {expected_format}" if "format" in record else "it has no format"


def _describe_problems(error: ValidationError) -> str:
    """Formats the first validation problems, each with its field."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    located = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in problems[:_MAX_PROBLEMS]]
    return "; ".join(f"{field}: {text}" if field else text for field, text in located)


R = TypeVar("R", bound=UnversionedRecord)


class RecordStore(Generic[R]):
    """Records of one class, by key. Safe for concurrent use from threads and processes."""

    def __init__(self, objects: ObjectStore, record_class: type[R]) -> None:
        self._objects = objects
        self._class = record_class

    def read(self, key: str) -> R | None:
        """Reads the record; None if it does not exist.

        Raises:
            DeltaworksError: of the record's kind, if it cannot be read.
        """
        stored = self._objects.get(key)
        return None if stored is None else self._class.decode(stored.data, key=key)

    def create(self, key: str, record: R) -> bool:
        """Creates the record; returns False if another process created a different one. Idempotent."""
        return self._objects.put_if_absent(key, record.encode())

    def get_or_create(self, key: str, record: R) -> R:
        """Creates the record unless it exists; returns the stored one. Idempotent.

        Raises:
            DeltaworksError: of the record's kind, if the stored record cannot be read.
            ContractError: the kind's condition, if the record was deleted meanwhile.
        """
        if self.create(key, record):
            return record
        stored = self.read(key)
        if stored is None:
            kind = self._class.kind
            raise ContractError(kind.vanished_condition, f"{key} was deleted meanwhile.", hint=kind.vanished_hint)
        return stored
