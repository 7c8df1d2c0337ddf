"""A replay followed by a reprocess of the same rows, and the reverse: no row is lost, doubled or wrongly closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from tests.crashes import Crash
from tests.spark.recovery.reprocess_harness import EVENTS, MENDED, ORDERS, ReprocessHarness, Row

MakeStage = Callable[..., ReprocessHarness]


def replay(stage: ReprocessHarness, fault: str = "") -> int:
    def stop_at(point: str) -> None:
        if point == fault:
            raise Crash(point)

    return replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False, fault=stop_at).landed


def in_tables_or_open(stage: ReprocessHarness) -> Counter[Row]:
    """Returns every row of a table, and every open quarantine row."""
    rows = Counter({row: count for row, count in stage.landed().items() if row[0] != "quarantine"})
    keys = Quarantine(stage.shop.lake, "shop").keys(QuarantineFilter()).to_pylist()
    return rows + Counter(("quarantine", row["_seq"], row["_position"]) for row in keys)


@pytest.fixture
def stage(make_stage: MakeStage) -> ReprocessHarness:
    """Orders without an amount were quarantined and then landed by a replay."""
    stage = make_stage(EVENTS, ORDERS)
    stage.redeclare(EVENTS, MENDED)
    assert replay(stage) == 6
    assert in_tables_or_open(stage) == stage.expected()
    return stage


@pytest.mark.parametrize(
    "tables", [*(pytest.param((name,), marks=pytest.mark.integration) for name in ("orders", "events")), ()]
)
def test_rows_a_replay_has_landed_stay_when_their_objects_are_reprocessed(
    stage: ReprocessHarness, tables: tuple[str, ...]
) -> None:
    stage.reprocess(tables=tables)

    assert in_tables_or_open(stage) == stage.expected()


def test_rows_a_reprocess_puts_back_into_quarantine_are_open_and_can_be_replayed_again(stage: ReprocessHarness) -> None:
    mended: PipelineSpec = stage.shop.spec
    stage.redeclare(EVENTS, ORDERS)

    stage.reprocess()

    assert in_tables_or_open(stage) == stage.expected()
    stage.redeclare(EVENTS, MENDED)
    assert replay(stage) == 6
    assert in_tables_or_open(stage) == stage.expected(mended)


@pytest.mark.parametrize("fault", [pytest.param("prepared", marks=pytest.mark.integration), "committed:events"])
def test_a_reprocess_completes_a_replay_that_was_left_half_done(make_stage: MakeStage, fault: str) -> None:
    stage = make_stage(EVENTS, ORDERS)
    stage.redeclare(EVENTS, MENDED)
    with pytest.raises(Crash):
        replay(stage, fault)

    stage.reprocess(tables=("orders",))

    assert in_tables_or_open(stage) == stage.expected()
    assert replay(stage) == 0
    assert in_tables_or_open(stage) == stage.expected()
