"""Replaces a table's files by another set of files in one commit, without a JVM.

Used to restore a table, and to rewrite files (`tables.rewrite`). Delta's RESTORE can only return to a version. Later
rows that should survive would have to be appended again, and readers in between would miss them. One commit with all
removes and adds avoids this, and streams that skip change commits neither lose nor duplicate rows. The commit has
exactly the version after the one that was read (put-if-absent), so it never overwrites another writer's commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, FencedError
from deltaworks.tables.commit import Step, guarded_commit
from deltaworks.tables.features import FILE_COMMIT_FEATURES
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import (
    Action,
    FileId,
    TableState,
    after_newer_commits,
    parse_schema_string,
    state_at,
    total_rows,
)
from deltaworks.tables.log_writer import commit_info, remove_action, txn_action, write_commit


@dataclass(frozen=True, slots=True)
class TargetState:
    """Files that the table is to have, and its new table metadata if that changes too.

    Args:
        metrics: operation metrics of the commit, with Delta's names.
        user_metadata: replaces that of the commit.
    """

    files: dict[FileId, Action]
    metadata: Action | None = None
    metrics: Mapping[str, int] | None = None
    user_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """Numbers of files, rows and bytes that are removed and added between two states. Rows are None if the log lacks
    the count of a file.
    """

    files_removed: int
    rows_removed: int | None
    bytes_removed: int
    files_added: int
    rows_added: int | None
    bytes_added: int

    @classmethod
    def between(cls, current: TableState, target: TargetState) -> StateDifference:
        """Computes the difference from the current state to the target."""
        removed = [added for name, added in current.files.items() if name not in target.files]
        added_back = [added for name, added in target.files.items() if name not in current.files]
        return cls(
            files_removed=len(removed),
            rows_removed=total_rows(removed),
            bytes_removed=sum(int(added.get("size") or 0) for added in removed),
            files_added=len(added_back),
            rows_added=total_rows(added_back),
            bytes_added=sum(int(added.get("size") or 0) for added in added_back),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCommitOutcome:
    """Result of a files commit: the table's version. With `newly_committed` False, the step was committed before."""

    version: int
    newly_committed: bool
    attempts: int
    difference: StateDifference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCommit:
    """Metadata and guards of a files commit.

    The transaction versions of `fenced_app_ids` are incremented, so that writers that have read the table before cannot
    commit to it afterwards.

    Args:
        step: transaction of the commit, which is committed once; None if the target state makes it idempotent.
        marks_change: a commit that only adds files also removes an empty one, so that Spark's streams see a change.
        changes_rows: False if the added files have the rows of the removed ones. Features that only concern changes are
            allowed then.
        action: the commit in an infinitive, for errors.
    """

    step: Step | None
    user_metadata: str = ""
    owner: Step | None = None
    fenced_app_ids: tuple[str, ...] = ()
    operation: str = "RESTORE"
    parameters: dict[str, str | None] = field(default_factory=dict)
    marks_change: bool = True
    changes_rows: bool = True
    action: str = "restore it"


def is_step_committed(state: TableState, step: Step) -> bool:
    """Returns whether a table has this version of a step, or a later one."""
    return state.transactions.get(step.app_id, -1) >= step.version


def reasons_against_files_commit(state: TableState) -> list[str]:
    """Returns why this table's files cannot be replaced here; empty if they can."""
    protocol = state.protocol
    features = set(protocol.get("writerFeatures") or ())
    reasons = [f"the feature {name}" for name in sorted(features - FILE_COMMIT_FEATURES)]
    if int(protocol.get("minWriterVersion") or 0) > 7:
        reasons.append(f"writer version {protocol['minWriterVersion']}")
    if state.configuration.get("delta.appendOnly") == "true":
        reasons.append("delta.appendOnly")
    return reasons


def check_supported(state: TableState) -> None:
    """Raises if the table has features that need more than adding and removing files.

    Raises:
        ContractError: RESTORE_UNSUPPORTED.
    """
    reasons = reasons_against_files_commit(state)
    if reasons:
        raise ContractError(
            "RESTORE_UNSUPPORTED", f"{state.key} cannot be restored, because it has {', '.join(reasons)}."
        )


def commit_files(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    target: Callable[[TableState], TargetState],
    *,
    commit: FilesCommit,
    expected: TableState | None = None,
    before_commit: Callable[[], None] = lambda: None,
) -> FilesCommitOutcome:
    """Commits the target state of the table at `key` as one step. Idempotent per step; safe with concurrent writers.

    Args:
        target: returns the target state for the table's current state. Called again after a conflict.
        expected: the current state for the first attempt, if it has been read; it may lack files that stay. Newer
            commits are applied to it after a conflict.
        before_commit: called before each attempt; raising ends it without a commit.

    Raises:
        FencedError: OWNER_FENCED.
        ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        ContractError: RESTORE_UNSUPPORTED, and see `state_at`.
    """
    state = expected

    def attempt(number: int) -> FilesCommitOutcome | None:
        nonlocal state
        if state is None:
            state = state_at(lake, objects, key)
        elif number > 1:
            state = after_newer_commits(lake, state)
        current = state
        _check_owner_epoch(current, commit.owner)
        if commit.step is not None and is_step_committed(current, commit.step):
            return FilesCommitOutcome(version=current.version, newly_committed=False, attempts=number)
        target_state = target(current)
        if commit.changes_rows:
            check_supported(current)
        before_commit()
        actions = _actions(current, target_state, commit)
        if commit.marks_change and _only_adds(actions):
            actions.append(_remove_of_empty_file(lake, key, current, actions))
        if not write_commit(objects, key, current.version + 1, actions):
            return None
        difference = StateDifference.between(current, target_state)
        return FilesCommitOutcome(
            version=current.version + 1, newly_committed=True, attempts=number, difference=difference
        )

    return guarded_commit(key, attempt, action=commit.action)


def _actions(current: TableState, target: TargetState, commit: FilesCommit) -> list[Action]:
    now = int(time.time() * 1000)
    fence_steps = [Step(app_id, current.transactions.get(app_id, 0) + 1) for app_id in commit.fenced_app_ids]
    steps = [*filter(None, (commit.step, commit.owner)), *fence_steps]
    actions = [
        commit_info(
            commit.operation,
            user_metadata=target.user_metadata or commit.user_metadata,
            at_ms=now,
            read_version=current.version,
            parameters=commit.parameters,
            metrics=target.metrics,
            changes_rows=commit.changes_rows,
        ),
        *(txn_action(step, now) for step in steps),
    ]
    if target.metadata is not None and target.metadata != current.metadata:
        actions.append({"metaData": target.metadata})
    actions += [
        remove_action(added, now, data_change=commit.changes_rows)
        for name, added in current.files.items()
        if name not in target.files
    ]
    added_back = [added for name, added in target.files.items() if name not in current.files]
    return [*actions, *({"add": {**added, "dataChange": commit.changes_rows}} for added in added_back)]


def _only_adds(actions: Sequence[Action]) -> bool:
    kinds = {kind for action in actions for kind in action}
    return "add" in kinds and "remove" not in kinds


def _remove_of_empty_file(lake: Lake, key: str, current: TableState, actions: Sequence[Action]) -> Action:
    """Writes an empty file and returns its remove action, for a commit that only adds files back.

    Spark recognizes a change commit by its removes. Without one, a stream that skips change commits would read the
    added rows again as new. The file must exist, because the change data feed reads it.
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
        )
