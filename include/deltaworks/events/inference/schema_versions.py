"""The versions of an inferred schema: one object each, put if absent and never changed.

A version says which columns were found, which hints were given, what was looked at, and what differs from the version
before. Whoever would change the schema makes the next version; of two at once one is first, and the other begins again
from what that one has made. So streams that start together have the same columns.
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
    """A version as it is kept. `columns` and `made_at` are for people.

    `id` tells a write of this process, whose reply was lost, from somebody else's of the same content.
    """

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="version of a schema",
        unreadable="SCHEMA_VERSION_UNREADABLE",
        hint="Nobody but the source may write there: put it back, or give another place for the schema.",
    )
    indent: ClassVar[int | None] = 1

    version: int
    columns: dict[str, str] = Field(default_factory=dict)
    inferred: tuple[tuple[str, str], ...]
    hints: str
    added: tuple[str, ...]
    conflicts: tuple[str, ...]
    sample: dict[str, Any]
    created_at: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version. `found` has the columns as samples have them, before `hints`.

    `sample` says what `added` comes from, `conflicts` which values of it the columns do not take.
    """

    number: int
    found: Mapping[str, ColumnType]
    hints: str = ""
    added: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    sample: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, ColumnType]:
        """The columns of the schema."""
        return apply_hints(self.found, parse_hints(self.hints))

    def to_record(self) -> SchemaVersionRecord:
        """As it is kept."""
        return SchemaVersionRecord(
            version=self.number,
            columns={name: str(kind) for name, kind in self.columns().items()},
            inferred=tuple((name, str(kind)) for name, kind in self.found.items()),
            hints=self.hints,
            added=self.added,
            conflicts=self.conflicts,
            sample=dict(self.sample),
            created_at=iso_now(),
            id=uuid.uuid4().hex,
        )

    @classmethod
    def from_record(cls, record: SchemaVersionRecord) -> SchemaVersion:
        """The version that `to_record` kept.

        Raises:
            ValueError: a type of a column that is none.
        """
        return cls(
            number=record.version,
            found={name: parse_type(kind) for name, kind in record.inferred},
            hints=record.hints,
            added=record.added,
            conflicts=record.conflicts,
            sample=record.sample,
        )


class SchemaVersions:
    """The versions at a place. Safe to use by several processes at once."""

    def __init__(self, objects: ObjectStore, location: str) -> None:
        self._objects = objects
        self._location = location

    def latest(self) -> SchemaVersion | None:
        """The newest version, or None where there is none yet.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
        """
        return next(self.newest_first(), None)

    def newest_first(self) -> Iterator[SchemaVersion]:
        """All versions, the newest first; each is read when it is asked for.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
        """
        return map(self._read, reversed(self._objects.list(_FOLDER)))

    def update(self, build: Callable[[SchemaVersion | None], SchemaVersion | None]) -> SchemaVersion:
        """Have the next version made out of the newest one; again from the beginning where somebody else was first.

        Args:
            make: gives the version to be kept, whatever its number, or None to leave all as it is.

        Returns: the newest version.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
            ConcurrencyError: SCHEMA_CONTENDED, somebody else was first a hundred times.
        """
        for _ in range(_MAX_ATTEMPTS):
            newest = self.latest()
            version = build(newest)
            if version is None:
                if newest is None:
                    raise ValueError("there is no version to leave as it is")
                return newest
            numbered = replace(version, number=1 if newest is None else newest.number + 1)
            if self._objects.put_if_absent(f"{_FOLDER}{numbered.number:010d}.json", numbered.to_record().encode()):
                return numbered
        raise ConcurrencyError(
            "SCHEMA_CONTENDED",
            f"{_MAX_ATTEMPTS} versions of the schema at {self._location} were made by others before this one.",
            hint="Give each source a place of its own for its schema.",
        )

    def _read(self, key: str) -> SchemaVersion:
        stored, named = self._objects.get(key), f"{self._location}/{key}"
        if stored is None:
            raise SchemaVersionRecord.refusal(named, "it is gone")
        try:
            return SchemaVersion.from_record(SchemaVersionRecord.decode(stored.data, key=named))
        except ValueError as error:
            raise SchemaVersionRecord.refusal(named, str(error)) from error
