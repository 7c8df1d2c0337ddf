"""Readable versions of a table: finds the version at a time, and explains why a version cannot be read.

A version is in the log as long as its commits, or a checkpoint before it, exist. It is readable as long as VACUUM has
not removed its files. Errors name the nearest readable version with its time.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from urllib.parse import unquote

from deltalake import DeltaTable

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import (
    CommitInfo,
    TableState,
    commit_history,
    is_absolute_path,
    list_log,
    read_commits,
    readable_base,
    state_at,
)

#: Commits read at a time while searching for a version with all files.
_COMMIT_CHUNK = 16
#: Commits by which the times of a log may be out of order, or have no time.
_WINDOW = 64


class Versions:
    """The versions of one table in its current log. Not thread-safe."""

    def __init__(self, lake: Lake, key: str, *, name: str) -> None:
        """Creates the reader for the table at `key`. `name` is the table's name in error messages."""
        self._lake, self._key, self._name = lake, key, name
        self._objects: ObjectStore = open_objects(lake.storage)
        self._log = list_log(self._objects, key)
        self._read: dict[int, CommitInfo] = {}
        newest, oldest = self._log.newest, self._log.oldest
        self.newest = -1 if newest is None else newest
        self.oldest = -1 if oldest is None else oldest

    def open(self, version: int) -> DeltaTable:
        """Opens the table at a version. Files are not checked; call `missing_files_error` after a failed read.

        Raises:
            ContractError: TABLE_VERSION_UNAVAILABLE, the version is not in the log; TABLE_LOG_GAP, commits before it
                are missing.
        """
        if not self.oldest <= version <= self.newest:
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"{self._name} has no version {version}: its log holds {self._describe_range()}.",
                hint=f"Write VERSION AS OF {min(max(version, self.oldest), self.newest)}, the nearest one.",
            )
        readable_base(self._lake, self._log, self._key, version)
        table = self._lake.open(self._key)
        if table is None:
            raise ContractError(
                "TABLE_LOG_MISSING", f"{self._name} was removed in the meantime.", hint="Try again in a moment."
            )
        table.load_as_version(version)
        return table

    def version_at(self, time: dt.datetime) -> int:
        """Returns the newest version up to which every commit was made at or before `time`.

        This is the time that commits record (`inCommitTimestamp`, else `timestamp`), or else when the storage received
        them. Times that decrease, because the clocks of writers differ, count as their predecessor's. Reads about ten
        commits and a window before the result, independent of the log's length.

        Raises:
            ContractError: TABLE_VERSION_UNAVAILABLE, the log does not reach back to `time`, or it is in the future.
        """
        if time > utc_now():
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"{_format_time(time)} is in the future: {self._name} is at {self._describe_version(self.newest)} now.",
                hint="Use a time in the past, or omit AS OF to read the current table.",
            )
        versions = sorted(version for version in self._log.commits if version >= self.oldest)
        position = bisect_right(versions, time, key=self._time_of)
        while position:
            window = range(max(0, position - _WINDOW), position)
            self._read_ahead(versions[window[0]], versions[window[-1]])
            later = next((at for at in window if self._time_of(versions[at]) > time), None)
            if later is None:
                break
            position = later
        if not position:
            nearest = versions[0] if versions else self.newest
            raise ContractError(
                "TABLE_VERSION_UNAVAILABLE",
                f"The log of {self._name} does not reach back to {_format_time(time)}: it has "
                f"{self._describe_range()}.",
                hint=f"Use a later time, or VERSION AS OF {nearest}, the nearest version.",
            )
        return versions[position - 1]

    def was_created_after(self, time: dt.datetime) -> bool:
        """Returns whether the log shows that the table was created after `time`."""
        return self.newest < 0 or (0 in self._log.commits and self._commit(0).at > time)

    def missing_files_error(self, version: int) -> ContractError | None:
        """Returns the error for a version with missing files; None if all files exist. Lists the table's folder."""
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
                f"{removed}, and files of every later version too.",
                hint="Run `deltaworks tables check`: it shows the missing files and how to recover them.",
            )
        return ContractError(
            "TABLE_VERSION_VACUUMED",
            f"{removed}, as VACUUM does after the retention. The next readable version is "
            f"{self._describe_version(readable)}.",
            hint=f"Write VERSION AS OF {readable}. `deltaworks tables pin` protects a version from VACUUM, "
            "`maintenance.time_travel_hours` all versions of a pipeline.",
        )

    def _next_readable_version(self, state: TableState, existing: set[str]) -> int | None:
        """Returns the first later version whose files all exist; applies commits to `state` until it is found."""
        for start in range(state.version + 1, self.newest + 1, _COMMIT_CHUNK):
            numbers = range(start, min(start + _COMMIT_CHUNK, self.newest + 1))
            for version, actions in read_commits(self._lake, self._key, numbers):
                state.apply(actions or ())
                if all(_exists(path, existing) for path, _ in state.files):
                    return version
        return None

    def _time_of(self, version: int) -> dt.datetime:
        """Returns the time of a commit. One that records none is at most as young as the next one that does, because
        the storage receives copied commits later than they were made.
        """
        commit = self._commit(version)
        if commit.records_time:
            return commit.at
        following = range(version + 1, min(version + _WINDOW, self.newest) + 1)
        if following:
            self._read_ahead(following[0], following[-1])
        recorded = (self._commit(number) for number in following if number in self._log.commits)
        return min(commit.at, next((later.at for later in recorded if later.records_time), commit.at))

    def _commit(self, version: int) -> CommitInfo:
        if version not in self._read:
            self._read_ahead(version, version)
        if version not in self._read:
            # The commit was removed after the log was listed, because it had expired.
            oldest = dt.datetime.min.replace(tzinfo=dt.UTC)
            self._read[version] = CommitInfo(version, "UNKNOWN", oldest, {}, {}, False, records_time=False)
        return self._read[version]

    def _read_ahead(self, first: int, last: int) -> None:
        """Reads those of these commits in parallel that have not been read, and those between them."""
        unread = [version for version in range(first, last + 1) if version not in self._read]
        if unread:
            limit = unread[-1] + 1 - unread[0]
            for commit in commit_history(self._lake, self._key, newest=unread[-1], limit=limit):
                self._read[commit.version] = commit

    def _describe_range(self) -> str:
        if self.oldest == self.newest:
            return self._describe_version(self.newest)
        return f"{self._describe_version(self.oldest)} to {self._describe_version(self.newest)}"

    def _describe_version(self, version: int) -> str:
        if version not in self._log.commits:
            return f"version {version}"
        return f"version {version} ({_format_time(self._commit(version).at)})"


def _exists(path: str, existing: set[str]) -> bool:
    # Files of a shallow clone are in the source table's folder.
    return is_absolute_path(path) or path in existing or unquote(path) in existing


def _format_time(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
