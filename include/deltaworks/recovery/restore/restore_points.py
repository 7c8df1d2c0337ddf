"""Maps a batch or a time to a table version, and lists the changes committed after it.

A batch maps to the table version at the batch's completion. That version includes later commits that only rearranged
rows, so that files which maintenance has removed are not needed.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from deltaworks.control.clock import utc_now
from deltaworks.errors import ConfigError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import CommitInfo, commit_history
from deltaworks.tables.versions import Versions


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The state to restore: a version of one table, a time, or a batch. Exactly one is set."""

    version: int | None = None
    time: dt.datetime | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if (self.version, self.time, self.batch).count(None) != 2:
            raise ambiguous_point_error()


def ambiguous_point_error() -> ConfigError:
    """Builds the error for a restore point with zero or several fields."""
    return ConfigError("RESTORE_POINT_INVALID", "Exactly one restore point is required.")


def batch_of_commit(commit: CommitInfo, pipeline: str, table: str) -> int | None:
    """Returns the batch whose rows this commit added; None for other commits."""
    step = re.fullmatch(rf"{re.escape(pipeline)}/g\d+/{re.escape(table)}", str(commit.metadata.get("step")))
    if step is None or not commit.changes_rows:
        return None
    return int(commit.metadata["step_version"])


def version_at_time(lake: Lake, key: str, at: dt.datetime, *, newest: int) -> int:
    """Returns the newest version up to which every commit was made at or before this instant; see
    `Versions.version_at`.

    Raises:
        ContractError: TABLE_VERSION_UNAVAILABLE.
    """
    return min(newest, Versions(lake, key, name=key).version_at(min(at, utc_now())))


def version_at_batch(
    lake: Lake, key: str, *, pipeline: str, table: str, newest: int, batch: int, completed_at: dt.datetime | None
) -> int:
    """Returns the version of the table at the completion of this batch.

    Args:
        completed_at: include other changes up to this time. If None, changes after the commit of the batch's rows are
            excluded.
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
    """Describes the row changes after a version that are neither batches nor replays, oldest first, one line each."""
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
