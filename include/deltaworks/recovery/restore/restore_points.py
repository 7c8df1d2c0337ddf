"""Which version of a table a batch or a time stands for, and what its commits since then did.

A table is taken as it was when the batch was complete. Commits after it that only rearranged rows are kept, so that
files which maintenance has removed meanwhile are not needed.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from deltaworks.errors import ConfigError, ContractError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import CommitInfo, commit_history


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """What to go back to: exactly one of a version of one table, a time, and a batch."""

    version: int | None = None
    time: dt.datetime | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if (self.version, self.time, self.batch).count(None) != 2:
            raise ambiguous_point_error()


def ambiguous_point_error() -> ConfigError:
    """The error of a restore point that is not exactly one of the three."""
    return ConfigError(
        "RESTORE_POINT_INVALID",
        "Say what to go back to in exactly one way.",
        hint="Give --to-version, --to-time or --to-batch.",
    )


def batch_of_commit(commit: CommitInfo, pipeline: str, table: str) -> int | None:
    """The batch whose rows this commit added; None for every other commit."""
    step = re.fullmatch(rf"{re.escape(pipeline)}/g\d+/{re.escape(table)}", str(commit.metadata.get("step")))
    if step is None or not commit.changes_rows:
        return None
    return int(commit.metadata["step_version"])


def version_at_time(lake: Lake, key: str, at: dt.datetime, *, newest: int) -> int:
    """The newest version of the table committed at this instant or before, by the times in its commits.

    Raises:
        ContractError: TABLE_VERSION_UNAVAILABLE.
    """
    for commit in commit_history(lake, key, newest=newest):
        if commit.at <= at:
            return commit.version
    raise ContractError(
        "TABLE_VERSION_UNAVAILABLE",
        f"The log of {key} holds no version of {at.isoformat()} or before.",
        hint="Choose a later time; the log keeps 30 days unless `delta.logRetentionDuration` says otherwise.",
    )


def version_at_batch(
    lake: Lake, key: str, *, pipeline: str, table: str, newest: int, batch: int, completed_at: dt.datetime | None
) -> int:
    """The version of the table as it was when this batch was complete.

    Args:
        completed_at: changes of other kinds up to then belong to it; None, those right after its rows do not.
    """
    later: list[CommitInfo] = []
    version = -1
    for commit in commit_history(lake, key, newest=newest):
        number = batch_of_commit(commit, pipeline, table)
        if number is not None and number <= batch:
            version = commit.version
            break
        later.append(commit)
    else:
        version = later[-1].version - 1 if later else newest
    for commit in reversed(later):
        if batch_of_commit(commit, pipeline, table) is not None:
            break
        if commit.changes_rows and (completed_at is None or commit.at > completed_at):
            break
        version = commit.version
    return max(version, 0)


def undone_changes(lake: Lake, key: str, *, pipeline: str, table: str, after: int, newest: int) -> tuple[str, ...]:
    """The changes of rows after a version that are neither batches nor replays, oldest first, as lines for people."""
    if newest <= after:
        return ()
    replay = f"{pipeline}/replay/{table}"
    commits = [
        commit
        for commit in commit_history(lake, key, newest=newest, limit=newest - after)
        if commit.changes_rows
        and commit.metadata.get("operation") != "append"
        and commit.metadata.get("step") != replay
    ]
    return tuple(
        f"version {commit.version}: {commit.metadata.get('operation') or commit.operation}"
        f" by {commit.metadata.get('run') or 'somebody'} at {commit.at:%Y-%m-%d %H:%M:%S}"
        for commit in reversed(commits)
    )
