"""What is known of a table's order: which partitions lie as Z-order left them, and how fast earlier runs went.

A partition is told by the files Z-order left in it: their count, their bytes and the time of the newest. While its
health shows these three, nothing has come, gone or been restored since. It needs no reading of commits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deltaworks.maintenance.table_health.measure import PartitionHealth
from deltaworks.tables.changes import Partition

#: What OPTIMIZE does with a partition: order all its files, or merge its small ones.
Action = Literal["zorder", "compact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What Z-order left in a partition at a version."""

    columns: tuple[str, ...]
    version: int
    files: int
    bytes: int
    newest_file_at: dt.datetime
    at: dt.datetime

    def is_as_left(self, found: PartitionHealth) -> bool:
        """Whether the partition holds what Z-order left, and nothing else."""
        left = (self.files, self.bytes, self.newest_file_at)
        return left == (found.files, found.bytes, found.newest_file_at)

    def unordered_share(self, found: PartitionHealth) -> float:
        """About which share of the partition's bytes is not in order, from 0 to 1.

        Where files only came it is the share of those; where any may have gone or been rewritten it is all.
        """
        if self.is_as_left(found):
            return 0.0
        fewer = found.files <= self.files or found.bytes <= self.bytes
        # Without a file as new as the newest that was left, that one is gone: the table was put back.
        if fewer or found.newest_file_at < self.newest_file_at:
            return 1.0
        return 1.0 - self.bytes / found.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a rewriting takes: so long for each partition, and for its bytes."""

    seconds_per_partition: float
    bytes_per_second: float

    def seconds(self, size: int) -> float:
        """How long one partition of `size` bytes takes."""
        return self.seconds_per_partition + size / self.bytes_per_second


#: Taken where no run has been measured: two cores and local disk.
FIRST_GUESS: Mapping[Action, Pace] = {
    "zorder": Pace(seconds_per_partition=1.0, bytes_per_second=12e6),
    "compact": Pace(seconds_per_partition=0.5, bytes_per_second=25e6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderState:
    """What the ledger knows of one table."""

    ordered: Mapping[Partition, Ordered] = field(default_factory=dict)
    paces: Mapping[Action, Pace] = field(default_factory=lambda: dict(FIRST_GUESS))
