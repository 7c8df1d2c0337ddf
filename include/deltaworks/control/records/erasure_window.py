"""Erasure windows: runs that delete the rows of all open requests together, and their result per table.

A purge costs as much as the files it rewrites, so a hundred pending requests cost about as much as one. The requests of
a window are fixed before it begins, so a run that continues it purges the same requests. A table is recorded once its
purge is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore

_KIND = RecordKind(
    noun="record of a window of erasures",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class ErasureWindow(Record):
    """A window: the requests it purges, each with the number of objects that contained the person's tokens before the
    purge.
    """

    kind: ClassVar[RecordKind] = _KIND

    namespace: str
    number: int
    requests: dict[str, int]
    at: str


class PurgedTable(Record):
    """Result of a purge for one table: total, erased and other rows, before and after.

    Args:
        version: the purge's commit; None if there was nothing to do.
        removed_files: paths below the table that VACUUM must delete.
        bytes_written: size of the files that the purge wrote, with the remaining rows of rewritten files.
        collector_numbers: collector sequence numbers of the erased events, packed.
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
    collector_numbers: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def unchanged(cls, pipeline: str, table: str, *, rows: int, retention_reason: str = "") -> PurgedTable:
        """Builds the result of a table without rows to erase."""
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
        """Returns the highest number; 0 before the first. One listing."""
        folder = paths.erasure_window(self._namespace, 1).rpartition("/")[0] + "/"
        names = (key.removeprefix(folder).partition("/")[0].removesuffix(".json") for key in self._objects.list(folder))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def read(self, number: int) -> ErasureWindow | None:
        """Reads one window.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        return self._windows.read(paths.erasure_window(self._namespace, number))

    def create_next(self, requests: dict[str, int]) -> ErasureWindow:
        """Creates the next window; returns the stored one if another process was first."""
        number = self.newest() + 1
        window = ErasureWindow(namespace=self._namespace, number=number, requests=requests, at=iso_now())
        return self._windows.get_or_create(paths.erasure_window(self._namespace, number), window)

    def table(self, number: int, pipeline: str, table: str) -> PurgedTable | None:
        """Returns the result for a table; None if the table is not purged yet."""
        return self._tables.read(paths.erasure_window_table(self._namespace, number, pipeline, table))

    def record_table(self, number: int, purged: PurgedTable) -> PurgedTable:
        """Records the result for a table. Idempotent."""
        key = paths.erasure_window_table(self._namespace, number, purged.pipeline, purged.table)
        return self._tables.get_or_create(key, purged)

    def collector_numbers_since(self, at: datetime) -> Iterator[dict[str, str]]:
        """Yields the packed collector numbers of rows purged by windows that were open at the given time or began
        later.
        """
        for number in range(self.newest(), 0, -1):
            window = self.read(number)
            for purged in self.tables(number):
                if purged.collector_numbers:
                    yield purged.collector_numbers
            started_at = None if window is None else parse_iso(window.at)
            if started_at is not None and started_at < at:
                return

    def tables(self, number: int) -> list[PurgedTable]:
        """Returns the results of a window so far. One listing, and a read per table."""
        folder = paths.erasure_window(self._namespace, number).removesuffix(".json") + "/"
        results = (self._tables.read(key) for key in self._objects.list(folder))
        return [purged for purged in results if purged is not None]
