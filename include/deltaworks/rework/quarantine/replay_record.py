"""The record of replays: what became of quarantined rows that were read again. Rows are only ever appended."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import REPLAYS, last_replay

LANDED, STILL_REJECTED, REPROCESSED = "landed", "still_rejected", "reprocessed"
REPLAYS_SCHEMA = arrow_schema(
    {
        "replay_id": "string",
        "replay": "long",
        "_seq": "long",
        "_position": "long",
        "outcome": "string",
        "table_names": "array<string>",
        "at": "timestamp",
        "spec_fingerprint": "string",
    }
)


def landed_seqs(lake: Lake, pipeline: str) -> set[int]:
    """The file events of which some row was landed by a replay."""
    rows = lake.rows(paths.quarantine_replays(pipeline), columns=["_seq", "outcome"])
    return {row["_seq"] for row in rows.to_pylist() if row["outcome"] == LANDED} if rows is not None else set()


def note_reprocessed(lake: Lake, pipeline: str, seqs: Iterable[int], *, reprocess_id: str, fingerprint: str) -> None:
    """Note that all rows of these objects were made anew, in tables and in quarantine: what replays landed of them
    before is void, and a row of theirs that is in quarantine is open. Idempotent by the reprocess's id.

    Call it while `rereading`, so that no replay comes in between.
    """
    key = paths.quarantine_replays(pipeline)
    table = lake.open(key)
    found = sorted(set(seqs) & landed_seqs(lake, pipeline))
    if table is None or not found:
        return
    last = last_replay(table, pipeline)
    shared = {"replay_id": reprocess_id, "replay": last, "outcome": REPROCESSED, "table_names": [], "at": utc_now()}
    rows = [{**shared, "_seq": seq, "_position": None, "spec_fingerprint": fingerprint} for seq in found]
    step = Step(f"{pipeline}/reprocess/{reprocess_id}/{REPLAYS}", 1)
    made = user_metadata(
        pipeline=pipeline,
        batch=reprocess_id,
        operation="reprocess",
        step=step.app_id,
        step_version=step.version,
    )
    lake.append(table, key, pa.Table.from_pylist(rows, schema=REPLAYS_SCHEMA), step=step, user_metadata=made)
