"""After each restore a quarantined row is open exactly if no table has it, and health counts none that was given up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

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
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.quarantine.summary import recount_quarantine
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_plan import TableRestoreRequest
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.pipeline import PipelineSpec
from tests.unit.engine.hold_harness import TABLES, declared
from tests.unit.recovery.restore.source_harness import SourceHarness

Place = tuple[int, int]


@pytest.fixture
def stage(tmp_path: Path) -> SourceHarness:
    """Two batches with one quarantined order each, their replay, and a third batch."""
    stage = SourceHarness.at(tmp_path)
    processor = stage.land_all(0, 1, 2)
    mend(stage)
    replay(stage)
    stage.land_object(processor, 3)
    return stage


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
    quarantine = stage.lake.open(paths.table("shop", "quarantine"))
    assert quarantine is not None
    quarantine.delete()  # as a reprocess or an expiry does
    recount_quarantine(stage.storage, "shop")

    recent = read_with_replays(stage.objects, "shop", limits, utc_now())

    assert describe_quarantine_excess(recent, limits, utc_now()) == ""
