"""Versions of a table that can still be read: which one a time stands for, and which files VACUUM has removed.

A version is in the log as long as its commits, or a checkpoint before it, are; it can be read as long as its files are
there. Who asks for one that is not gets the nearest ones that are, with their times.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from urllib.parse import unquote

from deltalake import DeltaTable

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import CommitInfo, TableState, commit_history, list_log, read_commits, replay_base, state_at

_ABSOLUTE_PATH = re.compile(r"^(?:/|\w+://)")
#: Commits are read in parts of this many, on the way to a version whose files are all there.
_COMMIT_CHUNK = 16


class Versions:
    """The versions of one table as its log has them now. Not safe to share between threads."""

    def __init__(self, lake: Lake, key: str, *, name: str) -> None:
        """`name` is what the table is called in messages."""
        self._lake, self._key, self._name = lake, key, name
        self._objects: ObjectStore = open_objects(lake.storage)
        self._log = list_log(self._objects, key)
        newest = self._log.newest
        self.newest = -1 if newest is None else newest
        self.oldest = min((*self._log.checkpoints, *({0} & self._log.commits)), default=self.newest)

    def open(self, version: int) -> DeltaTable:
        """The table as of a version. Its files are not looked at: `explain_missing` does, once reading has failed.

        Raises:
            ContractError: TABLE_VERSION_UNAVAILABLE, the log does not hold it; TABLE_LOG_GAP, commits before it are missing.
        """
        if not self.oldest <= version <= self.newest:
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"{self._name} has no version {version}: its log holds {self._describe_range()}.",
                hint=f"Write VERSION AS OF {min(max(version, self.oldest), self.newest)}, the nearest one.",
            )
        replay_base(self._log, self._key, version)
        table = self._lake.open(self._key)
        if table is None:
            raise ContractError(
                "TABLE_LOG_MISSING", f"{self._name} has been removed meanwhile.", hint="Ask again in a moment."
            )
        table.load_as_version(version)
        return table

    def version_at(self, time: dt.datetime) -> int:
        """The newest version committed at this instant or before, by the times in its commits.

        Reads some ten commits however long the log is. Where clocks of writers were apart, so that a later commit
        bears an earlier time, it is one of the versions between which the time lies.

        Raises:
            ContractError: TABLE_VERSION_UNAVAILABLE, the log does not reach back so far, or the time is to come.
        """
        if time > utc_now():
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"{_format_time(time)} is yet to come: {self._name} is at {self._describe_version(self.newest)} now.",
                hint="Name a time that has passed, or leave AS OF out for the table as it is.",
            )
        versions = sorted(version for version in self._log.commits if version >= self.oldest)
        position = bisect_right(versions, time, key=lambda version: self._commit(version).at)
        if not position:
            nearest = versions[0] if versions else self.newest
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"The log of {self._name} does not reach back to {_format_time(time)}: it holds {self._describe_range()}.",
                hint=f"Name a later time, or write VERSION AS OF {nearest}, the nearest one.",
            )
        return versions[position - 1]

    def was_created_after(self, time: dt.datetime) -> bool:
        """Whether the table was made after this instant, as far as its log still tells."""
        return self.newest < 0 or (0 in self._log.commits and self._commit(0).at > time)

    def missing_files_error(self, version: int) -> ContractError | None:
        """The error of a version of which files are not there any more; None where all are.

        Lists the table's folder, so it is for a reading that has failed.
        """
        state = state_at(self._lake, self._objects, self._key, version)
        prefix = f"{self._key}/"
        existing = {name.removeprefix(prefix) for name in self._objects.list(prefix)}
        missing = sum(not _exists(path, existing) for path, _ in state.files)
        if not missing:
            return None
        removed = f"{missing} of {len(state.files)} files of version {version} of {self._name} have been removed"
        readable = self._next_readable_version(state, existing)
        if readable is None:
            return ContractError(
                "TABLE_VERSION_VACUUMED",
                f"{removed}, and so have files of every later version.",
                hint="`deltaworks tables check` says what is missing, and how to have it again.",
            )
        return ContractError(
            "TABLE_VERSION_VACUUMED",
            f"{removed}, as VACUUM does after the retention. The next that is whole is {self._describe_version(readable)}.",
            hint=f"Write VERSION AS OF {readable}. `deltaworks tables keep` keeps a version from VACUUM, and "
            "`maintenance.time_travel_hours` all of a pipeline's.",
        )

    def _next_readable_version(self, state: TableState, existing: set[str]) -> int | None:
        """The first version after the state's of which every file is there. Takes the state forward."""
        for start in range(state.version + 1, self.newest + 1, _COMMIT_CHUNK):
            numbers = range(start, min(start + _COMMIT_CHUNK, self.newest + 1))
            for version, actions in read_commits(self._lake, self._key, numbers):
                state.apply(actions or ())
                if all(_exists(path, existing) for path, _ in state.files):
                    return version
        return None

    def _commit(self, version: int) -> CommitInfo:
        for commit in commit_history(self._lake, self._key, newest=version, limit=1):
            return commit
        # Cleaned up since the log was listed: it was old.
        return CommitInfo(version, "UNKNOWN", dt.datetime.min.replace(tzinfo=dt.UTC), {}, {}, False)

    def _describe_range(self) -> str:
        if self.oldest == self.newest:
            return self._describe_version(self.newest)
        return f"{self._describe_version(self.oldest)} to {self._describe_version(self.newest)}"

    def _describe_version(self, version: int) -> str:
        if version not in self._log.commits:
            return f"version {version}"
        return f"version {version} ({_format_time(self._commit(version).at)})"


def _exists(path: str, existing: set[str]) -> bool:
    # Files of a shallow clone lie with the table it was made of.
    return _ABSOLUTE_PATH.match(path) is not None or path in existing or unquote(path) in existing


def _format_time(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
