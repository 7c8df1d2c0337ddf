"""Batch records for tests, with defaults for everything."""

from __future__ import annotations

from typing import Any

from deltaworks.control.locks.write_turn import TurnReason, TurnRecord
from deltaworks.control.records.prepared import PreparedBatch
from deltaworks.engine.ledger import StepOutcome


def prepared_batch(batch_id: int, **changes: Any) -> PreparedBatch:
    """Batch `batch_id` of the pipeline `shop`, with the same Spark batch id in its first checkpoint."""
    usual: dict[str, Any] = {
        "pipeline": "shop",
        "generation": 1,
        "batch_id": batch_id,
        "spark_batch_id": batch_id,
        "checkpoint": 1,
        "owner": "o",
        "owner_epoch": 1,
        "run": "manual",
        "prepared_at": "2024-01-01T00:00:00.000+00:00",
        "ingested_at_us": 0,
        "spec_fingerprint": "f",
        "code_version": "0",
        "offsets": {"start": None, "end": {"seq": batch_id}},
        "source": {"files": 1},
        "tables": (),
    }
    return PreparedBatch(**(usual | changes))


def step_outcome(table: str, **changes: Any) -> StepOutcome:
    """A committed step of one table of `shop`."""
    usual: dict[str, Any] = {
        "step": f"shop/g1/{table}",
        "table_name": table,
        "writer": "fan_out",
        "outcome": "committed",
        "rows": 5,
        "files": 1,
        "bytes": 9,
        "delta_version": 3,
        "seconds": 0.1,
    }
    return StepOutcome(**(usual | changes))


def asked_turn(table: str, *, reason: TurnReason = "write_turn") -> TurnRecord:
    """The record of a job that requests a turn."""
    return TurnRecord(
        table=table,
        turn="t",
        reason=reason,
        state="requested",
        by="tests",
        run="manual",
        renewal=0,
        ttl_seconds=600,
        max_turn_seconds=600,
        requested_at="",
    )
