"""A quarantined row is open exactly if no table has it, after each restore and after a start over."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.throughput import (
    EventTotals,
    ThroughputWriter,
    describe_quarantine_excess,
    read_with_replays,
)
from deltaworks.recovery.quarantine import replay as quarantine_replay
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter, recount_quarantine
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec, present
from tests.crashes import Crash, crash_at
from tests.unit.engine.hold_harness import TABLES, declared
from tests.unit.recovery.replay_harness import ReplayHarness, orders
from tests.unit.recovery.restore.source_harness import SourceHarness

Place = tuple[int, int]


@pytest.fixture(scope="module")
def landed_stage(tmp_path_factory: pytest.TempPathFactory) -> SourceHarness:
    stage = SourceHarness.at(tmp_path_factory.mktemp("landed"))
    assert isinstance(stage, SourceHarness)
    processor = stage.land_all(0, 1, 2)
    mend(stage)
    replay(stage)
    stage.land_object(processor, 3)
    return stage


@pytest.fixture
def stage(landed_stage: SourceHarness, tmp_path: Path) -> SourceHarness:
    """Two batches with one quarantined order each, their replay, and a third batch."""
    return landed_stage.copied_to(tmp_path)


def mend(stage: SourceHarness) -> None:
    """Declares another path, by which every order fits."""
    changed = declared()
    for table in changed["tables"]:
        table["columns"] = [{"name": "level", "path": "another", "type": "int"}]
    stage.spec = PipelineSpec.model_validate(changed)


def replay(stage: SourceHarness) -> int:
    return replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False).landed


def open_places(stage: SourceHarness) -> Counter[Place]:
    keys = Quarantine(stage.lake, "shop").keys(QuarantineFilter()).to_pylist()
    return Counter((row["_seq"], row["_position"]) for row in keys)


def check_open_rows(stage: SourceHarness) -> None:
    """Checks open rows against all tables, and that a replay lands the others once."""
    in_tables = Counter(place for name in TABLES for place in stage.landed(name))
    quarantined = set(stage.landed("quarantine"))
    assert set(open_places(stage)) == quarantined - set(in_tables)
    replay(stage)
    assert not open_places(stage)
    assert all(count == 1 for name in TABLES for count in stage.landed(name).values())
    assert quarantined <= {place for name in TABLES for place in stage.landed(name)}


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_a_pipeline_restored_to_a_batch_has_no_open_row_that_is_in_a_table(stage: SourceHarness, batch: int) -> None:
    start_over(stage.catalog(), "shop", restore_point=RestorePoint(batch=batch), dry_run=False, max_rows=1_000)

    check_open_rows(stage)


@pytest.mark.parametrize("table", [*TABLES, "quarantine"])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_restored_table_leaves_no_open_row_that_is_in_a_table(stage: SourceHarness, table: str, batch: int) -> None:
    request = TableRestoreRequest(point=RestorePoint(batch=batch), max_rows=1_000)

    TableRestore(stage.catalog(), "shop", table).run(request)

    check_open_rows(stage)


def test_a_damaged_table_does_not_prevent_the_restore_of_another(stage: SourceHarness) -> None:
    for file in (stage.root / "lake" / paths.table("shop", "logins")).rglob("*.parquet"):
        file.unlink()

    request = TableRestoreRequest(point=RestorePoint(batch=2), max_rows=1_000)
    TableRestore(stage.catalog(), "shop", "orders").run(request)

    assert set(stage.landed("orders")) >= set(stage.landed("quarantine"))


def test_quarantined_rows_that_return_after_they_were_removed_are_closed(stage: SourceHarness) -> None:
    quarantine = stage.lake.open(paths.table("shop", "quarantine"))
    replays = stage.lake.open(paths.quarantine_replays("shop"))
    assert quarantine is not None
    assert replays is not None
    version = quarantine.version()
    quarantine.delete("_seq <= 2")  # a reprocess removes rows that fit
    replays.delete()

    point = RestorePoint(version=version)
    TableRestore(stage.catalog(), "shop", "quarantine").run(TableRestoreRequest(point=point, max_rows=1_000))

    assert stage.landed("quarantine").total() == 2
    check_open_rows(stage)


@pytest.mark.parametrize("batch", [None, 1])
def test_health_does_not_count_events_of_batches_that_are_given_up(stage: SourceHarness, batch: int | None) -> None:
    limits = HealthLimits()
    for name in ("throughput", "replayed_throughput"):
        writer = ThroughputWriter(stage.objects, getattr(paths, name)(paths.pipeline_control("shop")))
        writer.add(utc_now(), EventTotals(events=1_000, quarantined=1_000 if name == "throughput" else 0))
        writer.write(utc_now())
    assert describe_quarantine_excess(read_with_replays(stage.objects, "shop", limits, utc_now()), limits, utc_now())

    point = None if batch is None else RestorePoint(batch=batch)
    start_over(stage.catalog(), "shop", restore_point=point, dry_run=False, max_rows=1_000)

    assert not read_with_replays(stage.objects, "shop", limits, utc_now()).spans


def test_health_does_not_count_events_that_have_left_quarantine_by_other_ways(stage: SourceHarness) -> None:
    limits = HealthLimits()
    writer = ThroughputWriter(stage.objects, paths.throughput(paths.pipeline_control("shop")))
    writer.add(utc_now(), EventTotals(events=1_000, quarantined=1_000))
    writer.write(utc_now())
    quarantine = present(stage.lake.open(paths.table("shop", "quarantine")))
    quarantine.delete()  # as a reprocess or an expiry does
    recount_quarantine(stage.storage, "shop")

    recent = read_with_replays(stage.objects, "shop", limits, utc_now())

    assert describe_quarantine_excess(recent, limits, utc_now()) == ""


def spec(level: str) -> PipelineSpec:
    """`int` is the mistake that `string` mends."""
    return pipeline_spec({"name": "events", "catch_all": True}, orders(level), stream={"lease_ttl_seconds": 3})


BROKEN, MENDED = spec("int"), spec("string")
TWO = Counter([(1, 0), (1, 1)])


def replay_mended(mended_stage: ReplayHarness, **options: Any) -> int:
    return replay_quarantine(mended_stage.catalog(MENDED), "shop", QuarantineFilter(), dry_run=False, **options).landed


def over(mended_stage: ReplayHarness) -> None:
    start_over(mended_stage.catalog(BROKEN), "shop", dry_run=False, max_rows=100)


def places_open(mended_stage: ReplayHarness) -> Counter[tuple[int, int]]:
    keys = Quarantine(mended_stage.lake, "shop").keys(QuarantineFilter()).to_pylist()
    return Counter((row["_seq"], row["_position"]) for row in keys)


@pytest.fixture
def mended_stage(tmp_path: Path) -> ReplayHarness:
    """Two orders that are in quarantine, since their level is no number."""
    mended_stage = ReplayHarness(tmp_path)
    body = "".join(json.dumps({"name": "order", "time": 1_700_000_000, "level": level}) for level in "ab")
    mended_stage.ingest(BROKEN, body.encode())
    assert places_open(mended_stage) == TWO
    return mended_stage


def test_rows_that_had_been_replayed_are_open_in_the_new_generation_and_land_once(mended_stage: ReplayHarness) -> None:
    assert replay_mended(mended_stage) == 2

    over(mended_stage)
    assert (mended_stage.places("orders"), places_open(mended_stage)) == (Counter(), Counter())
    mended_stage.read_from_the_start(BROKEN, generation=2)

    assert places_open(mended_stage) == TWO
    assert replay_mended(mended_stage) == 2
    assert mended_stage.places("orders") == mended_stage.places("events") == TWO
    assert replay_mended(mended_stage) == 0


def test_a_replay_that_was_left_half_done_is_completed_in_what_is_given_up(mended_stage: ReplayHarness) -> None:
    with pytest.raises(Crash):
        replay_mended(mended_stage, fault=crash_at("committed:events"))

    over(mended_stage)
    mended_stage.read_from_the_start(MENDED, generation=2)

    assert mended_stage.places("orders") == mended_stage.places("events") == TWO
    assert replay_mended(mended_stage) == 0


@pytest.mark.parametrize("point", ["files_written", "prepared", "committed:events"])
def test_a_replay_that_sleeps_through_it_adds_nothing_when_it_wakes_up(
    mended_stage: ReplayHarness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    held = contextlib.nullcontext
    monkeypatch.setattr(quarantine_replay, "exclusive_reread", lambda *arguments, **options: held())
    monkeypatch.setattr("deltaworks.recovery.start_over.exclusive_reread", lambda *arguments, **options: held())
    slept = []

    def sleep(reached: str) -> None:
        if reached == point and not slept:
            slept.append(reached)
            over(mended_stage)

    replay_mended(mended_stage, fault=sleep)
    mended_stage.read_from_the_start(MENDED, generation=2)

    assert slept
    assert mended_stage.places("orders") == mended_stage.places("events") == TWO
