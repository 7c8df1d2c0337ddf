"""Windows: runs that take the rows of all open requests out at once, and what each did to each table.

The cost of a purge is that of files, so a hundred requests that wait for a night cost what one does. A window is fixed
before it begins, so that whoever continues it purges for the same requests; a table is noted once its purge is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar

from pydantic import Field

from deltaworks.control import erasure_paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore

_KIND = RecordKind(
    noun="record of a window of erasures",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class ErasureWindow(Record):
    """A window, fixed: the requests that it purges for, each with the objects that had tokens of theirs before it."""

    kind: ClassVar[RecordKind] = _KIND

    namespace: str
    number: int
    requests: dict[str, int]
    at: str


class PurgedTable(Record):
    """What a purge did to one table: rows of everybody, of those who go, and of the others, before and after.

    `removed` are the paths below the table that VACUUM has to have deleted; `version` is None where nothing was there
    to be done. `bytes_written` is what the others' rows of those files became. `numbers` are those that collectors gave
    to the events of the rows that went, packed.
    """

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    table: str
    version: int | None
    at_ms: int
    rows_before: int
    erased_before: int
    rows_after: int
    erased_after: int
    other_rows_before: int
    other_rows_after: int
    by_request: dict[str, int] = Field(default_factory=dict)
    dates: dict[str, int] = Field(default_factory=dict)
    removed_files: tuple[str, ...] = ()
    bytes_written: int = 0
    retention_reason: str = ""
    collector_numbers: dict[str, str] = Field(default_factory=dict, exclude_if=lambda value: not value)

    @classmethod
    def unchanged(cls, pipeline: str, table: str, *, rows: int, retention_reason: str = "") -> PurgedTable:
        """Of a table with so many rows, all of which stay."""
        return cls(
            pipeline=pipeline,
            table=table,
            version=None,
            at_ms=0,
            rows_before=rows,
            erased_before=0,
            rows_after=rows,
            erased_after=0,
            other_rows_before=rows,
            other_rows_after=rows,
            retention_reason=retention_reason,
        )


class ErasureWindows:
    """The windows of one namespace, numbered from 1 without gaps."""

    def __init__(self, objects: ObjectStore, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._windows = RecordStore(objects, ErasureWindow)
        self._tables = RecordStore(objects, PurgedTable)

    def newest(self) -> int:
        """The highest number; 0 before the first. One listing."""
        folder = erasure_paths.erasure_window(self._namespace, 1).rpartition("/")[0] + "/"
        names = (key.removeprefix(folder).partition("/")[0].removesuffix(".json") for key in self._objects.list(folder))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def read(self, number: int) -> ErasureWindow | None:
        """One window.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        return self._windows.read(erasure_paths.erasure_window(self._namespace, number))

    def create_next(self, requests: dict[str, int]) -> ErasureWindow:
        """Fix the next window; returns the one that stands, which is another process's where that one was first."""
        number = self.newest() + 1
        window = ErasureWindow(namespace=self._namespace, number=number, requests=requests, at=iso_now())
        return self._windows.get_or_create(erasure_paths.erasure_window(self._namespace, number), window)

    def table(self, number: int, pipeline: str, table: str) -> PurgedTable | None:
        """What a window did to a table; None while it has not."""
        return self._tables.read(erasure_paths.purged_table(self._namespace, number, pipeline, table))

    def record_table(self, number: int, purged: PurgedTable) -> PurgedTable:
        """Note what was done to a table. Idempotent."""
        key = erasure_paths.purged_table(self._namespace, number, purged.pipeline, purged.table)
        return self._tables.get_or_create(key, purged)

    def collector_numbers_since(self, at: datetime) -> Iterator[dict[str, str]]:
        """The numbers of purged rows, packed, of windows that began at that time or later, or that were open then."""
        for number in range(self.newest(), 0, -1):
            window = self.read(number)
            for purged in self.tables(number):
                if purged.collector_numbers:
                    yield purged.collector_numbers
            begun = None if window is None else parse_iso(window.at)
            if begun is not None and begun < at:
                return

    def tables(self, number: int) -> list[PurgedTable]:
        """All that a window has done so far. One listing, and a read for each."""
        folder = erasure_paths.erasure_window(self._namespace, number).removesuffix(".json") + "/"
        read = (self._tables.read(key) for key in self._objects.list(folder))
        return [purged for purged in read if purged is not None]
