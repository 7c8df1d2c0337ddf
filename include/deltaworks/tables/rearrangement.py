"""Commits that put rows of a table into other files and change none, as Delta's OPTIMIZE does; needs no JVM.

Appends that land meanwhile are no conflict: the commit is tried again behind them. A commit that takes one of the files
out, a merge or a restore for example, has overtaken what was made of that partition, which is then left as it is; the
other partitions are committed all the same. The commit says `OPTIMIZE` and `dataChange: false`, so that streams, change
feeds and whatever else follows the table read no change from it.
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
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, read_commits
from deltaworks.tables.restore import put_commit, removal

OPERATION = "OPTIMIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """Files of one partition, by the paths the log has, with their bytes, and the files with the same rows."""

    partition: Partition
    taken: Mapping[str, int]
    written: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RearrangeOutcome:
    """What was committed, and what another writer has overtaken. `version` is None where nothing was committed."""

    version: int | None
    landed: tuple[Rearranged, ...]
    overtaken: tuple[Rearranged, ...]


def commit_rearranged(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    rearranged: Sequence[Rearranged],
    *,
    read_version: int,
    user_metadata: str,
    parameters: Mapping[str, str],
    before_commit: Callable[[], None] = lambda: None,
) -> RearrangeOutcome:
    """Commit to the table at `key`, in one commit, what was made of the files it had at `read_version`.

    Args:
        parameters: what the commit says of itself as `operationParameters`.
        before_commit: called before each attempt; what it raises ends the work, with nothing committed.

    Raises:
        TransientError: the storage does not answer. Whether the commit landed shows in the log, by `user_metadata`.
    """
    version, live = read_version, list(rearranged)
    for _ in commit_attempts():
        for actions in _commits_after(lake, key, version):
            version += 1
            live = [] if _changes_table(actions) else [one for one in live if not _takes_from(actions, one)]
        if not live:
            break
        before_commit()
        if put_commit(objects, key, version + 1, _actions(live, version, user_metadata, parameters)):
            keep_checkpoints(lake, key, version + 1)
            return _outcome(rearranged, live, version + 1)
    return _outcome(rearranged, [], None)


def _outcome(rearranged: Sequence[Rearranged], live: Sequence[Rearranged], version: int | None) -> RearrangeOutcome:
    places = {one.partition for one in live}
    overtaken = tuple(one for one in rearranged if one.partition not in places)
    return RearrangeOutcome(version=version, landed=tuple(live), overtaken=overtaken)


def _commits_after(lake: Lake, key: str, version: int) -> list[list[Action]]:
    """The commits that have landed since, the oldest first."""
    landed: list[list[Action]] = []
    while True:
        ((_, actions),) = read_commits(lake, key, [version + len(landed) + 1])
        if actions is None:
            return landed
        landed.append(actions)


def _changes_table(actions: Sequence[Action]) -> bool:
    """Whether columns, properties or what the table asks of its writers may be others now."""
    return any("metaData" in action or "protocol" in action for action in actions)


def _takes_from(actions: Sequence[Action], one: Rearranged) -> bool:
    # A delete with deletion vectors takes a file out and puts it back, under the same path.
    return any("remove" in action and action["remove"]["path"] in one.taken for action in actions)


def _actions(
    live: Sequence[Rearranged], version: int, user_metadata: str, parameters: Mapping[str, str]
) -> list[Action]:
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": OPERATION,
        # The id is unique to this attempt, so that another writer's commit is never taken for it.
        "operationParameters": {**parameters, "commit": uuid.uuid4().hex},
        "readVersion": version,
        "isolationLevel": "SnapshotIsolation",
        "isBlindAppend": False,
        "operationMetrics": _metrics(live),
        "engineInfo": "deltaworks",
        "userMetadata": user_metadata,
    }
    removes = [_remove(one, path, size, now) for one in live for path, size in one.taken.items()]
    added = [{"add": file.as_logged(at_ms=now, data_change=False)} for one in live for file in one.written]
    return [{"commitInfo": info}, *removes, *added]


def _remove(one: Rearranged, path: str, size: int, at_ms: int) -> Action:
    action = removal({"path": path, "partitionValues": dict(one.partition), "size": size}, at_ms)
    return {"remove": {**action["remove"], "dataChange": False}}


def _metrics(live: Sequence[Rearranged]) -> dict[str, str]:
    """By Delta's own names, and as texts, as it writes them."""
    written = [file for one in live for file in one.written]
    return {
        "numRemovedFiles": str(sum(len(one.taken) for one in live)),
        "numRemovedBytes": str(sum(sum(one.taken.values()) for one in live)),
        "numAddedFiles": str(len(written)),
        "numAddedBytes": str(sum(file.size for file in written)),
    }


def keep_checkpoints(lake: Lake, key: str, version: int) -> None:
    """Write the checkpoint that is due with this version. A reader does without one, so a failure is none of ours."""
    table = lake.open(key)
    if table is None:
        return
    if version % checkpoint_interval(table) == 0:
        with contextlib.suppress(DeltaError):
            table.create_checkpoint()
