"""Several pipelines in one driver: each is exactly once, and none affects the others.

Those marked `integration` have twins without a JVM in tests/unit/engine/group: test_run.py (members that fail, stop,
wait, join and leave) and test_supervision.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import backoff, paths
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.engine import driver_host
from deltaworks.engine.group import run
from deltaworks.engine.runner import IngestRun
from deltaworks.operations.stream_parts import STREAM_PARTS
from tests.spark.engine.group.group_harness import MEMBERS, POISON, GroupHarness
from tests.waiting import eventually


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupHarness:
    monkeypatch.setattr(backoff, "FIRST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(run, "UPDATE_SECONDS", 0.5)
    monkeypatch.setattr(driver_host, "BATCH_END_SECONDS", 30.0)
    harness = GroupHarness(tmp_path)
    for name in MEMBERS:
        harness.declare(name)
    return harness


def lease_record(harness: GroupHarness, pipeline: str) -> LeaseRecord:
    held = harness.objects.get(paths.stream_lease(pipeline))
    record = LeaseRecord.decode_or_none(held.data) if held else None
    assert record is not None
    return record


@pytest.mark.integration
def test_a_pipeline_moves_from_its_own_driver_into_a_group_exactly_once(
    spark: SparkSession, harness: GroupHarness
) -> None:
    harness.land("ants", files=2)
    IngestRun(spark, harness.catalog, "ants", parts=STREAM_PARTS, available_now=True).run()
    before = harness.heartbeat("ants")
    for name in MEMBERS:
        harness.land(name, files=2)

    result = harness.group_run(spark, available_now=True).run()

    assert harness.is_exact()
    assert result.ended_by == "available now"
    assert result.rows == 3 * 10, "what landed before is not read again"
    moved = harness.heartbeat("ants")
    assert (moved.state, moved.epoch) == ("ended", before.epoch + 1)
    assert before.batch_id is not None
    assert moved.batch_id == before.batch_id + 1
    assert len({lease_record(harness, name).owner for name in MEMBERS}) == len(MEMBERS)
    assert all(harness.lake.open(paths.progress(name)) is not None for name in MEMBERS)


@pytest.mark.integration
def test_a_failing_member_is_parked_and_a_stopped_one_stays_stopped_while_others_continue(
    spark: SparkSession, harness: GroupHarness
) -> None:
    harness.declare("bees", **POISON)
    harness.land("bees", step=1)
    with harness.running(spark):
        harness.land("ants")
        harness.land("cats")
        eventually(lambda: harness.condition("bees") == "STREAM_PARKED", "bees are parked")
        eventually(lambda: harness.is_exact("ants", "cats"), "the others landed")
        assert harness.backoff("bees").read().parked_condition == "RULE_FAILED"

        harness.stop("ants").set(by="tests", reason="to see the others go on")
        eventually(lambda: harness.heartbeat("ants").state == "ended", "ants are stopped")
        harness.land("ants")
        harness.land("cats")
        eventually(lambda: harness.is_exact("cats"), "cats go on")
        assert not harness.is_exact("ants")

        harness.declare("bees")
        harness.backoff("bees").reset()
        harness.stop("ants").clear()
        eventually(harness.is_exact, "both were started again, with what is declared now")
    assert {harness.heartbeat(name).state for name in MEMBERS} == {"ended"}


@pytest.mark.integration
def test_an_invalid_member_waits_and_members_join_and_leave_immediately(
    spark: SparkSession, harness: GroupHarness
) -> None:
    harness.declare("bees", unknown=1)
    harness.declare("cats", group=None)
    for name in MEMBERS:
        harness.land(name)
    with harness.running(spark):
        eventually(lambda: harness.is_exact("ants"), "ants landed")
        assert not harness.landed("bees", "cats")

        harness.declare("bees")
        harness.declare("cats")
        harness.declare("ants", group=None)
        eventually(harness.is_exact, "all landed")
        eventually(lambda: harness.heartbeat("ants").state == "ended", "ants have left")
        assert harness.heartbeat("bees").state != "ended"


@pytest.mark.integration
@pytest.mark.parametrize("isolated", [True, False])
def test_a_lost_lease_ends_one_query_and_not_the_shared_driver(
    spark: SparkSession, harness: GroupHarness, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(driver_host, "exit_immediately", lambda *_, **more: ended.append(more))
    if not isolated:

        class Alone(driver_host.SharedDriver):
            on_lease_lost = driver_host.OwnDriver.on_lease_lost  # type: ignore[assignment]

        monkeypatch.setattr(run, "SharedDriver", Alone)
    with harness.running(spark):
        for name in MEMBERS:
            harness.land(name)
        eventually(harness.is_exact, "all landed")
        mine, others = lease_record(harness, "ants"), lease_record(harness, "cats")
        taken = mine.replace(owner="somebody", epoch=mine.epoch + 1, released=True, host="elsewhere", pid=1)
        harness.objects.put(paths.stream_lease("ants"), taken.encode())
        eventually(lambda: bool(ended) or lease_record(harness, "ants").epoch > taken.epoch, "the loss is noticed")
        harness.land("ants")
        assert bool(ended) == (not isolated), "a driver that does not tell them apart ends all"
        assert lease_record(harness, "cats").epoch == others.epoch
        if isolated:
            eventually(harness.is_exact, "ants are back")
