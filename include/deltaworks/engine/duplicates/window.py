"""Driver side of duplicate flagging: selects each table's window files, and flags duplicates across tasks of a batch.

Both happen before the batch is prepared, so its content is the same for any owner that commits it.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.engine.duplicates.flags import DuplicateWindow
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import DUPLICATE_COLUMN
from deltaworks.tables.commit import refresh
from deltaworks.tables.file_workers import rows_by_file
from deltaworks.tables.files import WrittenFile, read_parquet, write_file
from deltaworks.tables.id_hashes import IdHashes, WindowFile, hash_ids
from deltaworks.tables.lake import Lake, arrow_path

if TYPE_CHECKING:
    from deltaworks.engine.table_set import TableSet
    from deltaworks.engine.writers import FileTarget


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
