"""The record of a gold table's comparisons with its SQL, and the late rows that its frozen dates lack."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from pydantic import Field

from deltaworks.control.clock import instant_or_none
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import gold_verification
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, read_summary

#: A scheduled run compares a table again after this time: weekly, though a run may begin some hours early.
VERIFICATION_INTERVAL: Final = timedelta(days=6, hours=12)


class GoldVerification(Summary):
    """The last comparison of a gold table, at `at`, and the state of its partitions.

    - `partitions`: those compared then; `differing_rows`: how many of their rows differed.
    - `deferred`: partitions that it left to a later run; `reason`: why they, or all, could not be compared.
    - `verified_at`: when each partition was last compared.
    - `differing`: the differing rows of each partition whose last comparison found any.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of a comparison of gold",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next comparison replaces it.",
    )

    table: str
    partitions: tuple[str, ...] = ()
    differing_rows: int = 0
    deferred: int = 0
    reason: str = ""
    verified_at: dict[str, str] = Field(default_factory=dict)
    differing: dict[str, int] = Field(default_factory=dict)

    @property
    def newest_at(self) -> datetime | None:
        """When a partition was last compared; None if none ever was."""
        return instant_or_none(max(self.verified_at.values(), default=None))

    def describe(self) -> str:
        """Returns the outcome of the last comparison in words."""
        if self.differing:
            return f"{sum(self.differing.values()):,} rows differ in {', '.join(sorted(self.differing))}"
        if not self.partitions:
            return f"not compared: {self.reason or 'no partition has ended'}"
        return f"{len(self.partitions):,} partitions equal their SQL" + (f"; {self.reason}" if self.reason else "")

    def is_due(self, now: datetime) -> bool:
        """Whether a scheduled run should compare the table again."""
        at = instant_or_none(self.at)
        return at is None or now - at >= VERIFICATION_INTERVAL


def read_gold_verification(objects: ObjectStore, pipeline: str, table: str) -> GoldVerification | None:
    """Reads the record of a gold table; None if it is missing or unreadable."""
    return read_summary(GoldVerification, objects, gold_verification(pipeline, table))[0]


def late_rows_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns the late rows of frozen dates that a table's record names, by date; empty if it is damaged."""
    rows = record.get("late_rows")
    if not isinstance(rows, Mapping):
        return {}
    return {str(date): count for date, count in rows.items() if isinstance(count, int)}
