"""What came to a table between two of its versions, read from the Delta log alone: how many rows, and where they lie.

Rows are told by version and not by the batch they were landed in: a table that was held, a replay of quarantined rows
and a reprocess add rows of old batches late.
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

#: The column by which rows are told from those that were there before.
BATCH_COLUMN = "_batch_id"
#: More partitions than these are not named one by one.
NAMED_PARTITIONS = 500


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows that came: all of them meet `condition`, and perhaps some that came before.

    `everything` says that no condition can be given, `removed` that rows were taken out too. `first_at` is when the
    first of them were committed.
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
    """What came after version `after` and up to `up_to`. Reads one small object per commit.

    What mutations, OPTIMIZE and purges wrote is not counted: they rearrange what was there.
    """
    found = _Found()
    for _, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            return Arrivals(everything=True, rows=found.rows, first_at=found.first_at, removed=True)
        found.add(actions)
    return found.arrivals()


def bounded(lake: Lake, key: str, *, after: int, up_to: int, max_rows: int) -> int:
    """The newest version up to `up_to` by which at most `max_rows` rows came; one commit at least."""
    rows = 0
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        came = _Found()
        came.add(actions or [])
        if rows and rows + came.rows > max_rows:
            return version - 1
        rows += came.rows
    return up_to


class _Found:
    """Adds up commits."""

    def __init__(self) -> None:
        self.rows = 0
        self.removed = self.unknown = False
        self.first_at: dt.datetime | None = None
        self.partitions: set[Partition] = set()
        self.batches: list[int] = []

    def add(self, actions: list[Action]) -> None:
        said: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if read_user_metadata(said.get("userMetadata")).get("operation") in BRINGING_NO_ROWS:
            return
        changing = list(changing_actions(actions))
        for action in changing:
            self._one(action)
        if changing and self.first_at is None:
            self.first_at = dt.datetime.fromtimestamp(int(said.get("timestamp", 0)) / 1000, tz=dt.UTC)

    def _one(self, action: Action) -> None:
        if "modificationTime" not in action:
            self.removed = True
            return
        stats = json.loads(action.get("stats") or "{}")
        self.rows += int(stats.get("numRecords") or 0)
        self.partitions.add(tuple(sorted((action.get("partitionValues") or {}).items())))
        least = (stats.get("minValues") or {}).get(BATCH_COLUMN)
        if least is None:
            self.unknown = True
        else:
            self.batches.append(int(least))

    def arrivals(self) -> Arrivals:
        return Arrivals(
            rows=self.rows,
            removed=self.removed,
            first_at=self.first_at,
            partitions=frozenset(self.partitions),
            first_batch=None if self.unknown or not self.batches else min(self.batches),
        )
