"""Finds the files added to and removed from a history table since a version, from its Delta log.

Appends only add files. Other changes (mutation, reprocess, restore, DELETE) also remove files; then the latest row of
every key in an added or removed file is looked up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.tables.arrow_types import arrow_schema, rows_as_declared
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, read_commits

#: Above this number of new commits the complete history is read.
MAX_COMMITS = 5_000
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFiles:
    """The added and removed files. If they are unknown, `reason` says why, and all rows must be read."""

    added: tuple[Action, ...] = ()
    removed: tuple[Action, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.reason)

    @property
    def removed_bytes(self) -> int:
        """Total size of the removed files, without those that were added in the same commits."""
        added_paths = {action["path"] for action in self.added}
        return sum(int(action.get("size") or 0) for action in self.removed if action["path"] not in added_paths)


def changed_files(lake: Lake, key: str, *, after_version: int | None, up_to_version: int) -> ChangedFiles:
    """Returns the files added and removed after `after_version` of the table at `key`. Reads one small object per
    commit.
    """
    if after_version is None:
        return ChangedFiles(reason="it has not been built from its history yet")
    if after_version > up_to_version:
        return ChangedFiles(reason=f"version {up_to_version} of its history is older than {after_version}")
    if up_to_version - after_version > MAX_COMMITS:
        return ChangedFiles(reason=f"its history has had {up_to_version - after_version} commits since")
    added: list[Action] = []
    removed: list[Action] = []
    for version, actions in read_commits(lake, key, range(after_version + 1, up_to_version + 1)):
        if actions is None:
            return ChangedFiles(reason=f"the commit of version {version} is no longer in the log of its history")
        for action in actions:
            for kind, target in (("add", added), ("remove", removed)):
                # OPTIMIZE does not change rows.
                if kind in action and action[kind].get("dataChange", True):
                    target.append(action[kind])
    return ChangedFiles(added=tuple(added), removed=tuple(removed))


def read_file_rows(
    lake: Lake, key: str, types: Mapping[str, str], files: Iterable[Action], *, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields all rows of these files in parts, including rows deleted by deletion vectors.

    Args:
        types: types of all columns; columns missing in a file are null.

    Raises:
        FileNotFoundError: a removed file was already deleted.
    """
    schema = arrow_schema({name: types[name] for name in columns})
    root = arrow_path(lake.storage, key)
    for action in files:
        partition = action.get("partitionValues") or {}
        with lake.filesystem.open_input_file(f"{root}/{unquote(action['path'])}") as source:
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            present = [name for name in columns if name in file.schema_arrow.names]
            parts: Iterator[pa.RecordBatch]
            if present:
                parts = file.iter_batches(_BATCH_ROWS, columns=present)
            else:
                parts = iter([pa.record_batch({"\0": pa.nulls(file.metadata.num_rows)})])
            for part in parts:
                yield pa.Table.from_batches([rows_as_declared(part, schema, partition=partition)])
