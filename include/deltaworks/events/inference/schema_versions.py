"""Versions of an inferred schema: one immutable object per version, created if absent.

A version has the inferred columns, the type hints, a summary of the sample, and the differences from the previous
version. If two writers create the next version at the same time, one succeeds, and the other starts again from its
result. So streams that start at the same time use the same columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.errors import ConcurrencyError
from deltaworks.events.inference.type_hints import apply_hints, parse_hints
from deltaworks.specs.types import ColumnType, parse_type

_FOLDER = "versions/"
_MAX_ATTEMPTS = 100


class SchemaVersionRecord(Record):
    """Stored form of a version. Only for information: `columns` and `created_at`.

    By its `id`, a process recognizes its own write after the reply was lost.
    """

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="version of a schema",
        unreadable_condition="SCHEMA_VERSION_UNREADABLE",
        hint="Only the source may write there. Restore the object, or choose another location for the schema.",
    )
    indent: ClassVar[int | None] = 1

    version: int
    columns: dict[str, str] = Field(default_factory=dict)
    inferred_columns: tuple[tuple[str, str], ...]
    hints: str
    added: tuple[str, ...]
    conflicts: tuple[str, ...]
    sample: dict[str, Any]
    created_at: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version of an inferred schema.

    Attributes:
        inferred_columns: columns from samples, before `hints` are applied.
        added: columns that are new in this version.
        conflicts: sampled values that do not fit the columns.
        sample: summary of the sample that led to this version.
    """

    number: int
    inferred_columns: Mapping[str, ColumnType]
    hints: str = ""
    added: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    sample: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, ColumnType]:
        """Returns the columns of the schema, with type hints applied."""
        return apply_hints(self.inferred_columns, parse_hints(self.hints))

    def to_record(self) -> SchemaVersionRecord:
        """Returns the stored form."""
        return SchemaVersionRecord(
            version=self.number,
            columns={name: str(kind) for name, kind in self.columns().items()},
            inferred_columns=tuple((name, str(kind)) for name, kind in self.inferred_columns.items()),
            hints=self.hints,
            added=self.added,
            conflicts=self.conflicts,
            sample=dict(self.sample),
            created_at=iso_now(),
            id=uuid.uuid4().hex,
        )

    @classmethod
    def from_record(cls, record: SchemaVersionRecord) -> SchemaVersion:
        """Restores a version from its stored form.

        Raises:
            ValueError: a column's type is invalid.
        """
        return cls(
            number=record.version,
            inferred_columns={name: parse_type(kind) for name, kind in record.inferred_columns},
            hints=record.hints,
            added=record.added,
            conflicts=record.conflicts,
            sample=record.sample,
        )


class SchemaVersions:
    """The versions of a schema, stored at a location. Safe for concurrent processes."""

    def __init__(self, objects: ObjectStore, location: str) -> None:
        self._objects = objects
        self._location = location

    def latest(self) -> SchemaVersion | None:
        """Returns the newest version, or None.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
        """
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[SchemaVersion]:
        """Yields all versions from newest to oldest. Each is read when it is requested.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
        """
        return map(self._read, reversed(self._objects.list(_FOLDER)))

    def update(self, build: Callable[[SchemaVersion | None], SchemaVersion | None]) -> SchemaVersion:
        """Creates the next version from the newest one; retries if another writer was faster. Returns the newest
        version.

        Args:
            build: returns the next version, whose number is replaced, or None for no change.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
            ConcurrencyError: SCHEMA_CONTENDED, a hundred attempts failed.
        """
        for _ in range(_MAX_ATTEMPTS):
            newest = self.latest()
            version = build(newest)
            if version is None:
                if newest is None:
                    raise ValueError("there is no version yet")
                return newest
            numbered = replace(version, number=1 if newest is None else newest.number + 1)
            if self._objects.put_if_absent(f"{_FOLDER}{numbered.number:010d}.json", numbered.to_record().encode()):
                return numbered
        raise ConcurrencyError(
            "SCHEMA_CONTENDED",
            f"Other writers created {_MAX_ATTEMPTS} versions of the schema at {self._location} during this update.",
        )

    def _read(self, key: str) -> SchemaVersion:
        stored, named = self._objects.get(key), f"{self._location}/{key}"
        if stored is None:
            raise SchemaVersionRecord.unreadable_error(named, "it is missing")
        try:
            return SchemaVersion.from_record(SchemaVersionRecord.decode(stored.data, key=named))
        except ValueError as error:
            raise SchemaVersionRecord.unreadable_error(named, str(error)) from error
