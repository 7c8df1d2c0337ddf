"""The versions of an inferred schema: one object each, put if absent and never changed.

A version says which columns were found, which hints were given, what was looked at, and what differs from the version
before. Whoever would change the schema makes the next version; of two at once one is first, and the other begins again
from what that one has made. So streams that start together have the same columns.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.events.inference.hints import parse_hints, with_hints
from deltaworks.specs.types import ColumnType, parse_type

_FOLDER = "versions/"
_FORMAT = 1
_MOST_ATTEMPTS = 100


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

    def to_bytes(self) -> bytes:
        """As it is kept."""
        record = {
            "format": _FORMAT,
            "version": self.number,
            "columns": {name: str(kind) for name, kind in self.columns().items()},
            "found": [[name, str(kind)] for name, kind in self.found.items()],
            "hints": self.hints,
            "added": self.added,
            "conflicts": self.conflicts,
            "sample": self.sample,
            "made_at": iso_now(),
            # Tells our own put, whose reply was lost, from another one's of the same content.
            "id": uuid.uuid4().hex,
        }
        return json.dumps(record, indent=1).encode()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SchemaVersion:
        """What `to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        return cls(
            number=int(record["version"]),
            found={name: parse_type(kind) for name, kind in record["found"]},
            hints=record["hints"],
            added=tuple(record["added"]),
            conflicts=tuple(record["conflicts"]),
            sample=record["sample"],
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
            wanted = make(newest)
            if wanted is None:
                assert newest is not None
                return newest
            numbered = replace(wanted, number=1 if newest is None else newest.number + 1)
            if self._objects.put_if_absent(f"{_FOLDER}{numbered.number:010d}.json", numbered.to_bytes()):
                return numbered
        raise ConcurrencyError(
            "SCHEMA_CONTENDED",
            f"{_MOST_ATTEMPTS} versions of the schema at {self._place} were made by others before this one.",
            hint="Give each source a place of its own for its schema.",
        )

    def _read(self, key: str) -> SchemaVersion:
        found, unreadable = self._objects.get(key), partial(self._unreadable, key)
        if found is None:
            raise unreadable(ValueError("it is gone"))
        return decode_record(found.data, SchemaVersion.from_record, expected=_FORMAT, unreadable=unreadable)

    def _unreadable(self, key: str, error: Exception) -> ContractError:
        return ContractError(
            "SCHEMA_VERSION_UNREADABLE",
            f"{self._place}/{key} is no version of a schema: {error!r}.",
            hint="Nobody but the source may write there: put it back, or give another place for the schema.",
        )
