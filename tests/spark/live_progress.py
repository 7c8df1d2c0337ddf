"""Progress of a live table's query, read from Spark's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """Progress of a live query's last batch.

    The number `late_rows` counts rows dropped by the watermark. Spark aggregates within a task first, so all late
    events of one group and task count as one row.
    """

    batch_id: int
    input_rows: int
    late_rows: int
    state_rows: int
    watermark: str | None

    @classmethod
    def from_spark(cls, progress: Mapping[str, Any]) -> Self:
        """Converts a query's progress (`query.lastProgress`, or a listener's parsed `event.progress.json`)."""
        operators = progress.get("stateOperators") or []
        return cls(
            batch_id=int(progress["batchId"]),
            input_rows=int(progress.get("numInputRows") or 0),
            late_rows=sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
            state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
            watermark=(progress.get("eventTime") or {}).get("watermark"),
        )
