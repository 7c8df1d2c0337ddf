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
from deltaworks.events.inference.hints import parse_hints, with_hints
from deltaworks.specs.types import ColumnType, parse_type

_FOLDER = "versions/"
_MOST_ATTEMPTS = 100


class SchemaRecord(Record):
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
    found: tuple[tuple[str, str], ...]
    hints: str
    added: tuple[str, ...]
    conflicts: tuple[str, ...]
    sample: dict[str, Any]
    made_at: str = ""
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
        return with_hints(self.found, parse_hints(self.hints))

    def to_record(self) -> SchemaRecord:
        """As it is kept."""
        return SchemaRecord(
            version=self.number,
            columns={name: str(kind) for name, kind in self.columns().items()},
            found=tuple((name, str(kind)) for name, kind in self.found.items()),
            hints=self.hints,
            added=self.added,
            conflicts=self.conflicts,
            sample=dict(self.sample),
            made_at=iso_now(),
            id=uuid.uuid4().hex,
        )

    @classmethod
    def of_record(cls, record: SchemaRecord) -> SchemaVersion:
        """The version that `to_record` kept.

        Raises:
            ValueError: a type of a column that is none.
        """
        return cls(
            number=record.version,
            found={name: parse_type(kind) for name, kind in record.found},
            hints=record.hints,
            added=record.added,
            conflicts=record.conflicts,
            sample=record.sample,
        )


class SchemaVersions:
    """The versions at a place. Safe to use by several processes at once."""

    def __init__(self, objects: ObjectStore, place: str) -> None:
        self._objects = objects
        self._place = place

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

    def change(self, make: Callable[[SchemaVersion | None], SchemaVersion | None]) -> SchemaVersion:
        """Have the next version made out of the newest one; again from the beginning where somebody else was first.

        Args:
            make: gives the version to be kept, whatever its number, or None to leave all as it is.

        Returns: the newest version.

        Raises:
            ContractError: SCHEMA_VERSION_UNREADABLE.
            ConcurrencyError: SCHEMA_CONTENDED, somebody else was first a hundred times.
        """
        for _ in range(_MOST_ATTEMPTS):
            newest = self.latest()
            version = make(newest)
            if version is None:
                if newest is None:
                    raise ValueError("there is no version to leave as it is")
                return newest
            numbered = replace(version, number=1 if newest is None else newest.number + 1)
            if self._objects.put_if_absent(f"{_FOLDER}{numbered.number:010d}.json", numbered.to_record().encode()):
                return numbered
        raise ConcurrencyError(
            "SCHEMA_CONTENDED",
            f"{_MOST_ATTEMPTS} versions of the schema at {self._place} were made by others before this one.",
            hint="Give each source a place of its own for its schema.",
        )

    def _read(self, key: str) -> SchemaVersion:
        stored, named = self._objects.get(key), f"{self._place}/{key}"
        if stored is None:
            raise SchemaRecord.refusal(named, "it is gone")
        try:
            return SchemaVersion.of_record(SchemaRecord.decode(stored.data, key=named))
        except ValueError as error:
            raise SchemaRecord.refusal(named, str(error)) from error
