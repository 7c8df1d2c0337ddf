"""Finds the versions of tables at a past time, as far as their logs reach."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from deltalake import DeltaTable

from deltaworks.errors import ContractError
from deltaworks.rules.inputs import OpenTable, source_tables
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.query import table_keys
from deltaworks.tables.versions import Versions


class TableHistory:
    """The commit times of the tables that rules read."""

    def __init__(self, lake: Lake, spec: PipelineSpec, rules: Sequence[RuleSpec]) -> None:
        self._lake = lake
        keys = table_keys(spec)
        self._keys = [keys[name] for name in source_tables(spec, [read for rule in rules for read in rule.reads])]
        self._commits = {key: self._readable_commits(key) for key in self._keys}
        self._versions = {key: Versions(lake, key, name=key) for key, times in self._commits.items() if times}
        self._open_versions: dict[str, tuple[int, DeltaTable]] = {}

    def versions_at(self, time: dt.datetime) -> Mapping[str, int] | None:
        """Returns the version of each table at a time. Omits tables that were created later.

        Returns None if a log or the files of a table no longer reach back to that time.
        """
        versions: dict[str, int] = {}
        for key in self._keys:
            commits = self._commits[key]
            commit_index = bisect_right(commits, time, key=lambda commit: commit[0])
            if commit_index:
                versions[key] = commits[commit_index - 1][1]
            elif commits and commits[0][1] > 0:
                return None
        return versions

    def has_all_tables(self, versions: Mapping[str, int]) -> bool:
        """Whether these versions include all tables."""
        return len(versions) == len(self._keys)

    def opener(self, versions: Mapping[str, int]) -> OpenTable:
        """Returns a function that opens tables at these versions. It opens other tables at their current version."""

        def open_table(key: str) -> DeltaTable | None:
            version = versions.get(key)
            if version is None:
                return self._lake.open(key)
            before = self._open_versions.get(key)
            if before is None or before[0] != version:
                self._open_versions[key] = version, self._versions[key].open(version)
            return self._open_versions[key][1]

        return open_table

    def _readable_commits(self, key: str) -> list[tuple[dt.datetime, int]]:
        table = self._lake.open(key)
        if table is None:
            return []
        versions = Versions(self._lake, key, name=key)
        commits = list(commit_history(self._lake, key, newest=table.version()))
        readable = sorted((item.version, item.at) for item in commits if item.version >= versions.oldest)
        # VACUUM removes files of the oldest versions first, so only the newest versions are readable.
        first = bisect_left(readable, True, key=lambda item: _is_readable(versions, item[0]))
        return sorted((at, version) for version, at in readable[first:])


def _is_readable(versions: Versions, version: int) -> bool:
    try:
        return versions.missing_files_error(version) is None
    except ContractError:
        return False
