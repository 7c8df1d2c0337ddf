"""Records: JSON objects that fix something once, and the store that reads and fixes them.

Whoever creates a record first decides; everybody else reads what that one decided. A record says which format it has,
and one that this release cannot read is refused by name: acting on half of a record would be worse than stopping.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, DeltaworksError

_MAX_PROBLEMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """What a record is called, and the conditions under which it cannot be used.

    `unreadable` is the condition of one that is torn, of another format, or has other fields than its model; `vanished`
    the condition of one that was deleted between being created by somebody else and being read.
    """

    noun: str
    unreadable_condition: str
    hint: str
    error: type[DeltaworksError] = ContractError
    vanished_condition: str = "RECORD_VANISHED"
    vanished_hint: str = "Run it again."


class RecordPart(BaseModel):
    """A piece of a record: frozen, and refusing fields it does not have.

    Values of fields of type `Any` must be plain JSON: what is read back has lists in place of tuples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed.

        Raises:
            ValidationError: a name that is no field, or a value of another type.
        """
        return type(self)(**{**self.__dict__, **changes})


class UnversionedRecord(RecordPart):
    """A record without `format`. Its kind is declared by the class."""

    kind: ClassVar[RecordKind]
    indent: ClassVar[int | None] = None

    def encode(self) -> bytes:
        """The object's bytes."""
        return self.model_dump_json(indent=self.indent).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Self:
        """Read the object that lies at `key`.

        Raises:
            DeltaworksError: of the kind's class and condition, for a torn object and for fields of another release.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise cls.unreadable_error(key, _describe_problems(error)) from error

    @classmethod
    def unreadable_error(cls, key: str, reason: str) -> DeltaworksError:
        """The error that says why the object at `key` cannot be read."""
        kind = cls.kind
        message = f"{key} is no {kind.noun} this release can read: {reason}."
        return kind.error(kind.unreadable_condition, message, hint=kind.hint)


class Record(UnversionedRecord):
    """A record that says its `format`. A subclass for a later format declares the field with that number."""

    format: int = 1

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Self:
        """Read the object that lies at `key`.

        Raises:
            DeltaworksError: of the kind's class and condition; for another format than the class has, too.
        """
        expected = cls.model_fields["format"].default
        try:
            record = cls.model_validate_json(data)
        except ValidationError as error:
            raise cls.unreadable_error(
                key, _describe_format_mismatch(data, expected) or _describe_problems(error)
            ) from error
        if "format" not in record.model_fields_set or record.format != expected:
            raise cls.unreadable_error(key, _describe_format_mismatch(data, expected))
        return record


def _describe_format_mismatch(data: bytes, expected: int) -> str:
    """How the format of an encoded record differs; empty where it does not, or cannot be told."""
    try:
        record = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(record, dict) or record.get("format") == expected:
        return ""
    return f"format {record['format']} is not {expected}" if "format" in record else "it has no format"


def _describe_problems(error: ValidationError) -> str:
    """The first problems, each with the place of its field."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    places = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in problems[:_MAX_PROBLEMS]]
    return "; ".join(f"{place}: {text}" if place else text for place, text in places)


R = TypeVar("R", bound=UnversionedRecord)


class RecordStore(Generic[R]):
    """Records of one class, by key. Safe to use from several threads and processes."""

    def __init__(self, objects: ObjectStore, record_class: type[R]) -> None:
        self._objects = objects
        self._class = record_class

    def read(self, key: str) -> R | None:
        """The record, or None where there is none.

        Raises:
            DeltaworksError: of the record's kind, where it is there and cannot be read.
        """
        stored = self._objects.get(key)
        return None if stored is None else self._class.decode(stored.data, key=key)

    def create(self, key: str, record: R) -> bool:
        """Create the record; False where somebody else was first with another. Idempotent."""
        return self._objects.put_if_absent(key, record.encode())

    def get_or_create(self, key: str, record: R) -> R:
        """Create the record, and return the one that stands: somebody else's where that one was first. Idempotent.

        Raises:
            DeltaworksError: of the record's kind, where the one that stands cannot be read.
            ContractError: the kind's condition for a record that was deleted meanwhile.
        """
        if self.create(key, record):
            return record
        stored = self.read(key)
        if stored is None:
            kind = self._class.kind
            raise ContractError(kind.vanished_condition, f"{key} was deleted meanwhile.", hint=kind.vanished_hint)
        return stored
