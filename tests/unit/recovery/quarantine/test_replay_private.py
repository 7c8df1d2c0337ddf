"""Replays with private fields: quarantine holds no raw values, so objects are re-read and records cannot be
replayed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.errors import ContractError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import ReplayResult, replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from tests.unit.recovery.replay_harness import ReplayHarness

MakeSpec = Callable[..., PipelineSpec]
ADDRESS = "203.0.113.77"
PRIVATE = [{"path": "ip", "keep": "network"}]
KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": "events"}


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    return ReplayHarness(tmp_path)


def spec_of(make_spec: MakeSpec, level: str, **changes: Any) -> PipelineSpec:
    """`level: int` is the mistake that `level: string` mends."""
    columns = [
        {"name": f"level_{level}", "path": "level", "type": level},
        {"name": "network", "path": "ip", "type": "string"},
    ]
    orders = {"name": "orders", "when": {"name": "order"}, "columns": columns}
    return make_spec(tables=[{"name": "events", "catch_all": True}, orders], **({"private": PRIVATE} | changes))


def event(level: Any) -> bytes:
    return json.dumps({"name": "order", "time": 1_700_000_000, "level": level, "ip": ADDRESS}).encode()


def replay(stage: ReplayHarness, spec: PipelineSpec, **options: Any) -> ReplayResult:
    return replay_quarantine(stage.catalog(spec), "shop", QuarantineFilter(), **({"dry_run": False} | options))


def test_a_row_whose_value_was_withheld_lands_from_its_object_and_is_masked(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_of(make_spec, "int"), event(1) + event("one") + event("two") + b"{broken")
    kept = stage.rows("quarantine")
    assert ADDRESS not in str(kept)
    assert [(row["raw"], row["raw_complete"]) for row in kept] == [("", False)] * 3

    result = replay(stage, spec_of(make_spec, "string"))

    assert (result.landed, result.still_rejected, result.not_replayable) == (2, 1, 0)
    assert stage.places("orders") == Counter([(1, 0), (1, 1), (1, 2)])
    assert {row["network"] for row in stage.rows("orders")} == {"203.0.113.0"}
    assert ADDRESS not in str(stage.rows("quarantine") + stage.rows("orders") + stage.rows("events") + stage.record())


def test_an_object_that_is_gone_leaves_its_rows_open(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_of(make_spec, "int"), event("one"))
    (stage.landing / "k1").unlink()

    result = replay(stage, spec_of(make_spec, "string"))

    assert (result.landed, result.not_replayable, dict(result.missing_causes)) == (0, 1, {"object_missing": 1})
    assert stage.open_places() == Counter([(1, 0)])


def test_an_object_that_was_replaced_by_another_of_its_length_is_not_taken_for_it(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    """The length is all that tells two values apart; the tag of the object tells the objects."""
    stage.ingest(spec_of(make_spec, "int"), event("one"))
    (stage.landing / "k1").write_bytes(event("two"))

    result = replay(stage, spec_of(make_spec, "string"))

    assert (result.landed, dict(result.missing_causes)) == (0, {"object_changed": 1})


@pytest.mark.parametrize("dry_run", [True, False])
def test_records_that_were_withheld_cannot_be_replayed_and_the_refusal_says_what_can_be_done(
    stage: ReplayHarness, make_spec: MakeSpec, dry_run: bool
) -> None:
    stage.ingest(spec_of(make_spec, "int"), event("one"))

    with pytest.raises(ContractError, match=r"QUARANTINE_EVENTS_NOT_KEPT.*None of the 1 .*deltaworks reprocess shop"):
        replay(stage, spec_of(make_spec, "string", source=KAFKA), dry_run=dry_run)


def test_records_that_were_kept_before_their_fields_were_private_can_be_replayed(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_of(make_spec, "int", private=()), event("one"))
    stage.ingest(spec_of(make_spec, "int"), event("two"))

    result = replay(stage, spec_of(make_spec, "string", source=KAFKA))

    assert (result.landed, result.not_replayable, dict(result.missing_causes)) == (1, 1, {"record_gone": 1})
    assert {row["network"] for row in stage.rows("orders")} == {"203.0.113.0"}


def test_nothing_in_quarantine_is_nothing_to_refuse(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_of(make_spec, "int"), event(1))

    assert replay(stage, spec_of(make_spec, "int", source=KAFKA)).selected == 0
    assert stage.lake.rows(paths.table("shop", "quarantine")) is not None
