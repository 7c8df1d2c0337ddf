"""The rows that arrived in a table between two of its versions, from the Delta log alone: how many, and where.

Rows are counted by version and not by the batch they were landed in: a table that was held, a replay of quarantined
rows and a reprocess add rows of old batches late.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.control.provenance import BRINGING_NO_ROWS, read_user_metadata
from deltaworks.tables.changes import Partition, within
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, changing_actions, read_commits

#: The column that separates new rows from those that were there before.
BATCH_COLUMN = "_batch_id"
#: The most partitions that a condition lists.
NAMED_PARTITIONS = 500


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows that arrived. All of them meet `condition`, and perhaps some older ones.

    `everything` means that no narrower condition is possible, `removed` that rows were removed too. `first_at` is when
    the first of them were committed.
    """

    rows: int = 0
    everything: bool = False
    removed: bool = False
    first_at: dt.datetime | None = None
    partitions: frozenset[Partition] = field(default_factory=frozenset)
    first_batch: int | None = None

    def __bool__(self) -> bool:
        return self.everything or self.removed or bool(self.partitions)

    def condition(self, types: Mapping[str, str]) -> str:
        """The condition as SQL over the table's columns."""
        if self.everything:
            return "true"
        conditions = [] if self.first_batch is None else [f"`{BATCH_COLUMN}` >= {self.first_batch}"]
        if 0 < len(self.partitions) <= NAMED_PARTITIONS:
            conditions.append(f"({within(self.partitions, types)})")
        return " AND ".join(conditions) or "true"


def arrivals(lake: Lake, key: str, *, after: int, up_to: int) -> Arrivals:
    """The rows that arrived after version `after` and up to `up_to`. Reads one small object for each commit.

    Commits of mutations, OPTIMIZE and purges do not count: they rewrite rows that were there.
    """
    total = _Sum()
    for _, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            return Arrivals(everything=True, rows=total.rows, first_at=total.first_at, removed=True)
        total.add(actions)
    return total.arrivals()


def bounded(lake: Lake, key: str, *, after: int, up_to: int, max_rows: int) -> int:
    """The newest version up to `up_to` by which at most `max_rows` rows arrived; one commit at least."""
    rows = 0
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        commit = _Sum()
        commit.add(actions or [])
        if rows and rows + commit.rows > max_rows:
            return version - 1
        rows += commit.rows
    return up_to


class _Sum:
    """Adds up commits."""

    def __init__(self) -> None:
        self.rows = 0
        self.removed = self.unknown_batches = False
        self.first_at: dt.datetime | None = None
        self.partitions: set[Partition] = set()
        self.batches: list[int] = []

    def add(self, actions: list[Action]) -> None:
        commit_info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if read_user_metadata(commit_info.get("userMetadata")).get("operation") in BRINGING_NO_ROWS:
            return
        changing = list(changing_actions(actions))
        for action in changing:
            self._add_file(action)
        if changing and self.first_at is None:
            self.first_at = dt.datetime.fromtimestamp(int(commit_info.get("timestamp", 0)) / 1000, tz=dt.UTC)

    def _add_file(self, action: Action) -> None:
        if "modificationTime" not in action:
            self.removed = True
            return
        stats = json.loads(action.get("stats") or "{}")
        self.rows += int(stats.get("numRecords") or 0)
        self.partitions.add(tuple(sorted((action.get("partitionValues") or {}).items())))
        least = (stats.get("minValues") or {}).get(BATCH_COLUMN)
        if least is None:
            self.unknown_batches = True
        else:
            self.batches.append(int(least))

    def arrivals(self) -> Arrivals:
        return Arrivals(
            rows=self.rows,
            removed=self.removed,
            first_at=self.first_at,
            partitions=frozenset(self.partitions),
            first_batch=None if self.unknown_batches or not self.batches else min(self.batches),
        )
