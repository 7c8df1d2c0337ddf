"""Puts a table back to files it had, in one commit of our own: what came since goes out, what was taken out comes back.

Delta's RESTORE brings a table to a version and nothing else; what landed after that and is to stay would come back in
commits of its own, and a reader in between would miss it. One commit that names both leaves no such moment, and is one
change for everybody who follows the table: a stream that leaves out changes neither misses nor doubles a row. It is
written with put-if-absent on the very version that follows the state it was computed from, so that no other writer's
commit is ever undone unseen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, FencedError
from deltaworks.tables.commit import Step, commit_attempts, contention_error
from deltaworks.tables.features import SUPPORTED_FEATURES
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, FileId, TableState, parse_schema_string, row_count, state_at


@dataclass(frozen=True, slots=True)
class TargetState:
    """What a table is to be made of: its files, and another table metadata where that changes too."""

    files: dict[FileId, Action]
    metadata: Action | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """What goes and what comes between two states, in files, rows and bytes."""

    files_removed: int
    rows_removed: int
    bytes_removed: int
    files_added: int
    rows_added: int
    bytes_added: int

    @classmethod
    def between(cls, current: TableState, target: TargetState) -> StateDifference:
        """From the table as it is to what it is to be."""
        removed = [added for name, added in current.files.items() if name not in target.files]
        added_back = [added for name, added in target.files.items() if name not in current.files]
        return cls(
            files_out=len(removed),
            rows_out=sum(map(row_count, removed)),
            bytes_out=sum(int(added.get("size") or 0) for added in removed),
            files_in=len(added_back),
            rows_in=sum(map(row_count, added_back)),
            bytes_in=sum(int(added.get("size") or 0) for added in added_back),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCommitOutcome:
    """What became of a restore. `newly_committed` is False where it had landed before; `version` is the table's then."""

    version: int
    newly_committed: bool
    attempts: int
    difference: StateDifference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCommit:
    """What a restoring commit says of itself, and what guards it.

    `raises` are application ids whose number it raises by one: whoever has read the table under the number before it
    cannot commit what follows from that.
    """

    step: Step
    user_metadata: str
    owner: Step | None = None
    fenced_app_ids: tuple[str, ...] = ()
    operation: str = "RESTORE"
    parameters: dict[str, str | None] = field(default_factory=dict)


def reasons_against_files_commit(state: TableState) -> list[str]:
    """Why a table cannot be put back by a commit of ours, in words; empty where it can."""
    protocol, configuration = state.protocol, state.metadata.get("configuration") or {}
    reasons = [f"the feature {name}" for name in sorted(set(protocol.get("writerFeatures") or ()) - SUPPORTED_FEATURES)]
    if int(protocol.get("minWriterVersion") or 0) > 7:
        reasons.append(f"writer version {protocol['minWriterVersion']}")
    if configuration.get("delta.appendOnly") == "true":
        reasons.append("delta.appendOnly")
    return reasons


def check_supported(state: TableState) -> None:
    """Refuse a table with features that ask more of a restore than moving files.

    Raises:
        ContractError: RESTORE_UNSUPPORTED.
    """
    reasons = reasons_against_files_commit(state)
    if reasons:
        raise ContractError(
            "RESTORE_UNSUPPORTED",
            f"{state.key} has {', '.join(reasons)}, so it cannot be put back by a commit of ours.",
            hint="Drop what is named from the table; or start the pipeline over.",
        )


def commit_files(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    target: Callable[[TableState], TargetState],
    *,
    commit: FilesCommit,
    before_commit: Callable[[], None] = lambda: None,
) -> FilesCommitOutcome:
    """Bring the table at `key` to the target as one step. Idempotent by its step; safe beside other writers.

    Args:
        target: what it is to be made of, given the table as it is committed to.
        before_commit: called before each attempt; what it raises ends the restore.

    Raises:
        FencedError: OWNER_FENCED.
        ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        ContractError: RESTORE_UNSUPPORTED, and what reading the log raises.
    """
    for attempt in commit_attempts():
        current = state_at(lake, objects, key)
        check_supported(current)
        _check_owner_epoch(current, commit.owner)
        if current.transactions.get(commit.step.app_id, -1) >= commit.step.version:
            return FilesCommitOutcome(version=current.version, newly_committed=False, attempts=attempt)
        target_state = target(current)
        before_commit()
        actions = _actions(current, target_state, commit)
        if _only_adds(actions):
            actions.append(_remove_of_empty_file(lake, key, current, actions))
        if write_commit(objects, key, current.version + 1, actions):
            difference = StateDifference.between(current, target_state)
            return FilesCommitOutcome(
                version=current.version + 1, newly_committed=True, attempts=attempt, difference=difference
            )
    raise contention_error(key, "restore it")


def write_commit(objects: ObjectStore, key: str, version: int, actions: Sequence[Action]) -> bool:
    """Write one commit of a log; False where that version is there already. Atomic on every storage we know."""
    lines = [json.dumps(action, separators=(",", ":")) for action in actions]
    return objects.put_if_absent(f"{key}/_delta_log/{version:020d}.json", "\n".join([*lines, ""]).encode())


def commit_info_action(commit: FilesCommit, *, read_version: int | None, at_ms: int) -> Action:
    """The action by which a commit says what it is."""
    info = {
        "timestamp": at_ms,
        "operation": commit.operation,
        "operationParameters": commit.parameters,
        "isBlindAppend": False,
        "engineInfo": "deltaworks",
        "userMetadata": commit.user_metadata,
    }
    return {"commitInfo": info if read_version is None else {**info, "readVersion": read_version}}


def txn_action(step: Step, at_ms: int) -> Action:
    """An application transaction as an action."""
    return {"txn": {"appId": step.app_id, "version": step.version, "lastUpdated": at_ms}}


def remove_action(added: Action, at_ms: int) -> Action:
    """The action that takes a file out which this add action brought."""
    kept = {name: added[name] for name in ("partitionValues", "size", "tags", "deletionVector") if added.get(name)}
    shared = {"path": added["path"], "deletionTimestamp": at_ms, "dataChange": True, "extendedFileMetadata": True}
    return {"remove": {**shared, "partitionValues": {}, "size": 0, **kept}}


def _actions(current: TableState, target: TargetState, commit: FilesCommit) -> list[Action]:
    now = int(time.time() * 1000)
    fence_steps = [Step(app_id, current.transactions.get(app_id, 0) + 1) for app_id in commit.fenced_app_ids]
    steps = [commit.step, *([commit.owner] if commit.owner else []), *fence_steps]
    actions = [
        commit_info_action(commit, read_version=current.version, at_ms=now),
        *(txn_action(step, now) for step in steps),
    ]
    if target.metadata is not None and target.metadata != current.metadata:
        actions.append({"metaData": target.metadata})
    actions += [remove_action(added, now) for name, added in current.files.items() if name not in target.files]
    added_back = [added for name, added in target.files.items() if name not in current.files]
    return [*actions, *({"add": {**added, "dataChange": True}} for added in added_back)]


def _only_adds(actions: Sequence[Action]) -> bool:
    kinds = {kind for action in actions for kind in action}
    return "add" in kinds and "remove" not in kinds


def _remove_of_empty_file(lake: Lake, key: str, current: TableState, actions: Sequence[Action]) -> Action:
    """The removal of a file without rows, which a commit that only puts files back needs.

    Spark distinguishes a change from an append by what a commit removes: without this, a stream that leaves changes
    out would take rows it has read before for new ones. The file is written, since the change data feed reads it.
    """
    partition = next(action["add"] for action in actions if "add" in action).get("partitionValues") or {}
    empty = parse_schema_string(current.metadata["schemaString"]).empty_table()
    file = write_file(lake.filesystem, arrow_path(lake.storage, key), empty, partition=partition)
    added = {"path": file.path, "partitionValues": partition, "size": file.size}
    return remove_action(added, int(time.time() * 1000))


def _check_owner_epoch(current: TableState, owner: Step | None) -> None:
    if owner is not None and current.transactions.get(owner.app_id, 0) > owner.version:
        raise FencedError(
            "OWNER_FENCED",
            f"{current.key}: owner epoch {current.transactions[owner.app_id]} has taken over from {owner.version}.",
            hint="Nothing: the successor continues where this one stopped.",
        )
