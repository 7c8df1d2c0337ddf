"""Counts the rows deleted by deletion vectors, from the Delta log alone.

deltalake lists a table's files without their deletion vectors. So tables with this feature are read here: the last
checkpoint and the commits after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable

from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, checkpoint_actions, read_commits

_CHECKPOINT_COLUMNS = ("add.path", "add.deletionVector.storageType", "add.deletionVector.cardinality")


def deleted_row_counts(
    lake: Lake, key: str, table: DeltaTable, *, checkpoint: Mapping[str, Any] | None
) -> dict[str, int] | None:
    """Returns the number of deleted rows by file path, at the open version. Files without deleted rows are omitted.

    Paths are URL-encoded as in the log and in deltalake's results. Returns None if a commit after the last checkpoint
    is missing, or the checkpoint itself.

    Args:
        checkpoint: content of `_last_checkpoint`.
    """
    if not has_deletion_vectors(table):
        return {}
    newest = table.version()
    if checkpoint is not None and int(checkpoint["version"]) > newest:
        checkpoint = None
    counts: dict[str, int] = {}
    if checkpoint is not None:
        names = [f"{key}/_delta_log/{name}" for name in _checkpoint_files(checkpoint)]
        try:
            for action in checkpoint_actions(lake, key, names, columns=_CHECKPOINT_COLUMNS):
                _apply_actions(counts, [action])
        except FileNotFoundError:
            return None
    checkpoint_version = int(checkpoint["version"]) if checkpoint is not None else -1
    for _, actions in read_commits(lake, key, range(checkpoint_version + 1, newest + 1)):
        if actions is None:
            return None
        _apply_actions(counts, actions)
    return counts


def read_last_checkpoint(lake: Lake, key: str) -> dict[str, Any] | None:
    """Reads `_last_checkpoint`. Returns None if it is missing or incomplete; the caller then lists the log."""
    path = f"{arrow_path(lake.storage, key)}/_delta_log/_last_checkpoint"
    try:
        with lake.filesystem.open_input_stream(path) as stream:
            checkpoint = json.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return None
    return checkpoint if isinstance(checkpoint, dict) and "version" in checkpoint else None


def _apply_actions(counts: dict[str, int], actions: list[Action]) -> None:
    # A DELETE removes a file and adds it with a larger vector in one commit; the order of the two actions is undefined.
    for action in actions:
        if "remove" in action:
            counts.pop(action["remove"]["path"], None)
    for action in actions:
        if "add" in action:
            vector = action["add"].get("deletionVector") or {}
            if count := int(vector.get("cardinality") or 0):
                counts[action["add"]["path"]] = count
            else:
                counts.pop(action["add"]["path"], None)


def _checkpoint_files(checkpoint: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the checkpoint's files, without its sidecars."""
    version, parts = int(checkpoint["version"]), checkpoint.get("parts")
    v2_checkpoint = checkpoint.get("v2Checkpoint")
    if v2_checkpoint is not None:
        yield v2_checkpoint["path"]
    elif parts:
        yield from (f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1))
    else:
        yield f"{version:020d}.checkpoint.parquet"
