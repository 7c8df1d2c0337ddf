"""Flags duplicates: rows whose `event_id` is in the table's window of recent files or occurred earlier in the batch.

A task flags its rows in the column `_duplicate`, which is null for rows without id, and returns its ids. The driver
selects each table's window files, and flags duplicates across tasks. Rows are never dropped. Both steps happen before
the batch is prepared, so its content is the same for any owner that commits it.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import DUPLICATE_COLUMN
from deltaworks.tables.commit import refresh
from deltaworks.tables.file_workers import rows_by_file
from deltaworks.tables.files import WrittenFile, read_parquet, write_file
from deltaworks.tables.id_hashes import IdHashes, WindowFile, WindowIds, hash_ids
from deltaworks.tables.lake import Lake, arrow_path

if TYPE_CHECKING:
    from deltaworks.engine.table_set import TableSet
    from deltaworks.engine.writers import FileTarget


#: Cached ids by table folder; Spark reuses Python workers for later batches.
_WINDOW_IDS_BY_ROOT: dict[str, WindowIds] = {}


@dataclass(frozen=True, slots=True)
class DuplicateWindow:
    """A table's duplicate window: its folder, and the files whose ids are compared.

    `skipped_files` counts files omitted because the maximum number of ids was reached.
    """

    root: str
    files: tuple[WindowFile, ...]
    skipped_files: int = 0


class DuplicateFlagger:
    """Flags duplicate rows of one task. Used by one thread."""

    def __init__(self, windows: Mapping[str, DuplicateWindow], filesystem: fs.FileSystem) -> None:
        self._filesystem = filesystem
        self._window_ids: dict[str, WindowIds] = {}
        self._first_ids: dict[str, IdHashes] = {}
        for table, window in windows.items():
            ids = _WINDOW_IDS_BY_ROOT.setdefault(window.root, WindowIds())
            ids.sync(window.files, partial(self._read_ids, window.root))
            self._window_ids[table] = ids

    def _read_ids(self, root: str, path: str) -> pa.ChunkedArray | None:
        try:
            with self._filesystem.open_input_file(f"{root}/{path}") as source:
                return read_parquet(source, columns=["event_id"]).column(0)
        except FileNotFoundError:  # removed by VACUUM in the meantime
            return None

    def flag(self, table: str, rows: pa.Table) -> pa.Table:
        """Returns the rows with the column `_duplicate`; unchanged rows if the table does not flag duplicates."""
        in_window = self._window_ids.get(table)
        if in_window is None:
            return rows
        ids = rows.column("event_id").combine_chunks()
        high, low = hash_ids(ids)
        has_id = np.asarray(ids.is_valid())
        earlier = self._first_ids.get(table) or IdHashes(high[:0], low[:0])
        is_duplicate = in_window.contains(high, low) | earlier.contains(high, low) | _repeats(high, low)
        is_first = has_id & ~is_duplicate
        self._first_ids[table] = earlier.union(IdHashes.from_hashes(high[is_first], low[is_first]))
        return rows.append_column(DUPLICATE_COLUMN, pa.array(is_duplicate, mask=~has_id))

    def first_ids(self) -> dict[str, bytes]:
        """Returns, by table, encoded hashes of the ids that this task saw first. The driver compares them
        across tasks."""
        return {table: ids.to_bytes() for table, ids in self._first_ids.items()}


def _repeats(high: Any, low: Any) -> Any:
    """Returns a mask of hashes that occurred earlier in the same arrays."""
    order = np.lexsort((np.arange(len(high)), low, high))
    is_repeat = np.zeros(len(high), dtype=bool)
    is_repeat[order[1:]] = (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
    return is_repeat


def duplicate_windows(
    spec: PipelineSpec, lake: Lake, tables: TableSet, *, now: dt.datetime
) -> dict[str, DuplicateWindow]:
    """Returns the window files of each table that flags duplicates.

    Tables that are not open or that Spark commits are omitted: their rows are not flagged.
    """
    windows = {}
    for table in spec.tables:
        if table.duplicates is None or tables.writer_by_table[table.name] != "fan_out":
            continue
        handle = tables.handles.get(table.name)
        if handle is None:
            continue
        refresh(handle)
        since = (now - dt.timedelta(days=table.duplicates.flag_within_days)).date()
        files = _files_since(lake, paths.table(spec.pipeline, table.name), handle, since)
        window_files = _newest_within_limit(files, table.duplicates.max_ids)
        root = arrow_path(lake.storage, paths.table(spec.pipeline, table.name))
        windows[table.name] = DuplicateWindow(root, window_files, len(files) - len(window_files))
    return windows


def _files_since(lake: Lake, key: str, handle: DeltaTable, since: dt.date) -> list[WindowFile]:
    """Returns the files with rows that arrived on or after the day `since`, oldest first.

    The window counts complete days, so that all files of a day leave it together.
    """
    actions = pa.table(handle.get_add_actions(flatten=True))
    if not actions.num_rows:
        return []
    names = set(actions.column_names)
    newest = actions.column("max._ingested_at").to_pylist() if "max._ingested_at" in names else [None] * len(actions)
    rows = rows_by_file(lake, key, actions)
    recent = [
        # Without statistics the file is assumed to be new, and a file whose rows cannot be counted exceeds any limit.
        WindowFile(
            path, (at.date() if at is not None else dt.date.max).isoformat(), sys.maxsize if count is None else count
        )
        for path, at, count in zip(actions.column("path").to_pylist(), newest, rows, strict=True)
    ]
    return sorted((file for file in recent if file.day >= since.isoformat()), key=lambda file: (file.day, file.path))


def _newest_within_limit(files: Sequence[WindowFile], max_ids: int) -> tuple[WindowFile, ...]:
    """Returns the newest files with at most `max_ids` ids in total."""
    count, ids = 0, 0
    for file in reversed(files):
        ids += file.rows
        if ids > max_ids:
            break
        count += 1
    return tuple(files[len(files) - count :])


@dataclass(slots=True)
class CrossTaskDuplicates:
    """Finds ids that occur in several tasks of a batch, and rewrites the files of later tasks to flag them."""

    target: FileTarget
    rewritten: int = 0
    _first_ids: dict[str, IdHashes] = field(default_factory=dict)

    def flag_duplicates(self, table: str, first_ids: bytes, files: Sequence[WrittenFile]) -> Sequence[WrittenFile]:
        """Returns one task's files of a table; files with ids of earlier tasks are rewritten with flags. Call it in
        task order.

        Args:
            first_ids: encoded hashes of the ids that the task saw first (`DuplicateFlagger.first_ids`).
        """
        task_ids, earlier = IdHashes.from_bytes(first_ids), self._first_ids.get(table)
        if earlier is None:
            self._first_ids[table] = task_ids
            return files
        is_duplicate = earlier.contains(task_ids.high, task_ids.low)
        self._first_ids[table] = earlier.union(IdHashes(task_ids.high[~is_duplicate], task_ids.low[~is_duplicate]))
        if not is_duplicate.any():
            return files
        duplicates = IdHashes(task_ids.high[is_duplicate], task_ids.low[is_duplicate])
        return [self._flag_file(table, file, duplicates) for file in files]

    def _flag_file(self, table: str, file: WrittenFile, duplicates: IdHashes) -> WrittenFile:
        filesystem, root = self.target.filesystem(), self.target.roots[table]
        with filesystem.open_input_file(f"{root}/{file.path}") as source:
            rows = read_parquet(source)
        flags = rows.column(DUPLICATE_COLUMN).combine_chunks()
        is_duplicate = duplicates.contains(*hash_ids(rows.column("event_id").combine_chunks()))
        if not (is_duplicate & np.asarray(pc.is_valid(flags))).any():
            return file
        self.rewritten += 1
        flags = pc.if_else(pa.array(is_duplicate), pc.or_(flags, pa.scalar(True)), flags)
        rows = rows.set_column(rows.schema.get_field_index(DUPLICATE_COLUMN), DUPLICATE_COLUMN, flags)
        for column in file.partition:
            # `write_file` expects the partition columns and drops them; their values are in the add action.
            rows = rows.append_column(column, pa.nulls(rows.num_rows))
        options: dict[str, Any] = {}
        if table in self.target.indexed:
            options["indexed"] = self.target.indexed[table]
        return write_file(filesystem, root, rows, partition=file.partition, **options)
