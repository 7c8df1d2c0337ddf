"""Events without a time field keep their arrival time, however often they are reprocessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from tests.spark.engine.conftest import DECLARED, Shop
from tests.spark.recovery.reprocess_harness import EVENTS, MENDED, ORDERS, ReprocessHarness, made_at

ARRIVING = {"event": {"name": {"path": "name"}, "time": {"arrival": True}, "id": "id"}}


def rows(stage: ReprocessHarness, table: str) -> list[dict[str, Any]]:
    """Returns rows without the batch's time, which for replayed rows is the replay's."""
    kept = stage.shop.table(table).drop_columns(["_ingested_at"])
    return kept.sort_by([("_seq", "ascending"), ("_position", "ascending")]).to_pylist()


def test_a_reprocess_gives_the_rows_of_the_stream_and_of_a_replay_again(make_shop: Callable[..., Shop]) -> None:
    stage = ReprocessHarness(make_shop(tables=[EVENTS, ORDERS], **ARRIVING))
    stage.land()
    stage.land()
    streamed = rows(stage, "orders")
    stage.shop.spec = PipelineSpec.model_validate(DECLARED | ARRIVING | {"tables": [EVENTS, MENDED]})
    stage.note_spec()
    replay_quarantine(stage.catalog(), "shop", QuarantineFilter(reasons=("missing_required",)), dry_run=False)
    replayed = {table: rows(stage, table) for table in ("events", "orders")}
    assert len(replayed["orders"]) > len(streamed) > 0

    stage.reprocess()

    assert {table: rows(stage, table) for table in ("events", "orders")} == replayed
    times = {(row["_seq"], row["event_time"]) for row in replayed["events"]}
    assert times == {(seq, made_at(seq)) for seq in stage.landed_seqs}
