"""Flags duplicates among the rows of one task, in the column `_duplicate`.

A row is a duplicate if its `event_id` is in the table's window of recent files or occurred earlier in this task. The
flag is null for rows without id. Rows are never dropped. The task also returns its ids, so that the driver can find
duplicates across tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from deltaworks.specs.table import DUPLICATE_COLUMN
from deltaworks.tables.files import read_parquet
from deltaworks.tables.id_hashes import IdHashes, WindowFile, WindowIds, hash_ids

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
