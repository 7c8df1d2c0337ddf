"""Commits rewritten files that contain the same rows, like Delta's OPTIMIZE, without a JVM.

Concurrent appends do not conflict: the commit is retried on top of them. A partition whose input files were removed by
a concurrent commit (a merge or restore) is skipped; the others are still committed. The operation is `OPTIMIZE` with
`dataChange: false`, so streams and change feeds see no changed rows.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.changes import Partition
from deltaworks.tables.commit import checkpoint_interval, commit_attempts
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.files_commit import remove_action, write_commit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, read_commits

OPERATION = "OPTIMIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """Rewrite of one partition: sizes of the removed files by path as in the log, and the added files with the same
    rows.
    """

    partition: Partition
    removed_files: Mapping[str, int]
    added_files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOutcome:
    """Committed partitions and conflicting ones, which were skipped. If nothing was committed, `version` is None."""

    version: int | None
    committed: tuple[RewrittenFiles, ...]
    conflicting: tuple[RewrittenFiles, ...]


def commit_optimize(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    rewrites: Sequence[RewrittenFiles],
    *,
    read_version: int,
    user_metadata: str,
    parameters: Mapping[str, str],
    before_commit: Callable[[], None] = lambda: None,
) -> OptimizeOutcome:
    """Replaces files of the table at `key`, read at `read_version`, by the rewritten files, in one commit.

    Args:
        parameters: the commit's `operationParameters`.
        before_commit: called before each attempt; raising ends it without a commit.

    Raises:
        TransientError: the storage does not answer. Search the log for `user_metadata` to see whether it was committed.
    """
    version, remaining = read_version, list(rewrites)
    for _ in commit_attempts():
        for actions in _newer_commits(lake, key, version):
            version += 1
            remaining = (
                []
                if _changes_metadata(actions)
                else [rewrite for rewrite in remaining if not _removes_inputs(actions, rewrite)]
            )
        if not remaining:
            break
        before_commit()
        if write_commit(objects, key, version + 1, _actions(remaining, version, user_metadata, parameters)):
            write_due_checkpoint(lake, key, version + 1)
            return _outcome(rewrites, remaining, version + 1)
    return _outcome(rewrites, [], None)


def _outcome(
    rewrites: Sequence[RewrittenFiles], committed: Sequence[RewrittenFiles], version: int | None
) -> OptimizeOutcome:
    partitions = {rewrite.partition for rewrite in committed}
    conflicting = tuple(rewrite for rewrite in rewrites if rewrite.partition not in partitions)
    return OptimizeOutcome(version=version, committed=tuple(committed), conflicting=conflicting)


def _newer_commits(lake: Lake, key: str, version: int) -> list[list[Action]]:
    """Returns the commits after `version`, oldest first."""
    commits: list[list[Action]] = []
    while True:
        ((_, actions),) = read_commits(lake, key, [version + len(commits) + 1])
        if actions is None:
            return commits
        commits.append(actions)


def _changes_metadata(actions: Sequence[Action]) -> bool:
    """Returns whether a commit may have changed columns, properties or required writer features."""
    return any("metaData" in action or "protocol" in action for action in actions)


def _removes_inputs(actions: Sequence[Action], rewrite: RewrittenFiles) -> bool:
    # A DELETE with deletion vectors removes a file and adds it again with the same path.
    return any("remove" in action and action["remove"]["path"] in rewrite.removed_files for action in actions)


def _actions(
    rewrites: Sequence[RewrittenFiles], version: int, user_metadata: str, parameters: Mapping[str, str]
) -> list[Action]:
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": OPERATION,
        # Unique per attempt, so that another writer's commit is never mistaken for this one.
        "operationParameters": {**parameters, "commit": uuid.uuid4().hex},
        "readVersion": version,
        "isolationLevel": "SnapshotIsolation",
        "isBlindAppend": False,
        "operationMetrics": _metrics(rewrites),
        "engineInfo": "deltaworks",
        "userMetadata": user_metadata,
    }
    removes = [
        _remove_action(rewrite, path, size, now) for rewrite in rewrites for path, size in rewrite.removed_files.items()
    ]
    added = [
        {"add": file.to_add_fields(at_ms=now, data_change=False)}
        for rewrite in rewrites
        for file in rewrite.added_files
    ]
    return [{"commitInfo": info}, *removes, *added]


def _remove_action(rewrite: RewrittenFiles, path: str, size: int, at_ms: int) -> Action:
    action = remove_action({"path": path, "partitionValues": dict(rewrite.partition), "size": size}, at_ms)
    return {"remove": {**action["remove"], "dataChange": False}}


def _metrics(rewrites: Sequence[RewrittenFiles]) -> dict[str, str]:
    """Returns the operation metrics with Delta's names, as text."""
    written = [file for rewrite in rewrites for file in rewrite.added_files]
    return {
        "numRemovedFiles": str(sum(len(rewrite.removed_files) for rewrite in rewrites)),
        "numRemovedBytes": str(sum(sum(rewrite.removed_files.values()) for rewrite in rewrites)),
        "numAddedFiles": str(len(written)),
        "numAddedBytes": str(sum(file.size for file in written)),
    }


def write_due_checkpoint(lake: Lake, key: str, version: int) -> None:
    """Writes a checkpoint at this version if one is due. Failures are ignored, because readers work without it."""
    table = lake.open(key)
    if table is None:
        return
    if version % checkpoint_interval(table) == 0:
        with contextlib.suppress(DeltaError):
            table.create_checkpoint()
