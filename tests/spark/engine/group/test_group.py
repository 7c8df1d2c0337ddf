"""Several pipelines in one driver: each lands exactly, and what happens to one is of no concern to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import backoff, paths
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.engine import driver_host
from deltaworks.engine.group import member, run
from deltaworks.engine.runner import IngestRun
from tests.spark.engine.group.group_stage import MEMBERS, POISON, GroupStage
from tests.waiting import eventually

pytestmark = pytest.mark.spark


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupStage:
    monkeypatch.setattr(backoff, "FIRST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(run, "UPDATE_SECONDS", 0.5)
    monkeypatch.setattr(driver_host, "BATCH_END_SECONDS", 30.0)
    stage = GroupStage(tmp_path)
    for name in MEMBERS:
        stage.declare(name)
    return stage


def lease_record(stage: GroupStage, pipeline: str) -> LeaseRecord:
    held = stage.objects.get(paths.stream_lease(pipeline))
    record = LeaseRecord.decode(held.data) if held else None
    assert record is not None
    return record


@pytest.mark.integration
def test_a_pipeline_moves_from_its_own_driver_into_a_group_and_all_land_exactly(
    spark: SparkSession, stage: GroupStage
) -> None:
    stage.land("ants", files=2)
    IngestRun(spark, stage.catalog, "ants", available_now=True).run()
    before = stage.heartbeat("ants")
    for name in MEMBERS:
        stage.land(name, files=2)

    result = stage.group_run(spark, available_now=True).run()

    assert stage.is_exact()
    assert result.ended_by == "available now"
    assert result.rows == 3 * 10, "what landed before is not read again"
    moved = stage.heartbeat("ants")
    assert (moved.state, moved.epoch) == ("ended", before.epoch + 1)
    assert before.batch_id is not None
    assert moved.batch_id == before.batch_id + 1
    assert len({lease_record(stage, name).owner for name in MEMBERS}) == len(MEMBERS)
    assert all(stage.lake.open(paths.progress(name)) is not None for name in MEMBERS)


@pytest.mark.integration
def test_a_poisoned_member_is_parked_and_a_stopped_one_left_alone_while_others_go_on(
    spark: SparkSession, stage: GroupStage
) -> None:
    stage.declare("bees", **POISON)
    stage.land("bees", step=1)
    with stage.running(spark):
        stage.land("ants")
        stage.land("cats")
        eventually(lambda: stage.condition("bees") == "STREAM_PARKED", "bees are parked")
        eventually(lambda: stage.is_exact("ants", "cats"), "the others landed")
        assert stage.backoff("bees").read().parked_condition == "RULE_FAILED"

        stage.stop("ants").set(by="tests", reason="to see the others go on")
        eventually(lambda: stage.heartbeat("ants").state == "ended", "ants are stopped")
        stage.land("ants")
        stage.land("cats")
        eventually(lambda: stage.is_exact("cats"), "cats go on")
        assert not stage.is_exact("ants")

        stage.declare("bees")
        stage.backoff("bees").reset()
        stage.stop("ants").clear()
        eventually(stage.is_exact, "both were started again, with what is declared now")
    assert {stage.heartbeat(name).state for name in MEMBERS} == {"ended"}


def test_a_member_declared_wrongly_waits_and_one_that_joins_or_leaves_does_so_at_once(
    spark: SparkSession, stage: GroupStage
) -> None:
    stage.declare("bees", unknown=1)
    stage.declare("cats", group=None)
    for name in MEMBERS:
        stage.land(name)
    with stage.running(spark):
        eventually(lambda: stage.is_exact("ants"), "ants landed")
        assert not stage.landed("bees", "cats")

        stage.declare("bees")
        stage.declare("cats")
        stage.declare("ants", group=None)
        eventually(stage.is_exact, "all landed")
        eventually(lambda: stage.heartbeat("ants").state == "ended", "ants have left")
        assert stage.heartbeat("bees").state != "ended"


@pytest.mark.parametrize("isolated", [True, False])
def test_a_lost_lease_ends_one_query_and_not_the_driver_of_all(
    spark: SparkSession, stage: GroupStage, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(driver_host, "end_now", lambda *_, **more: ended.append(more))
    if not isolated:

        class Alone(driver_host.SharedDriver):
            on_lease_lost = driver_host.OwnDriver.on_lease_lost  # type: ignore[assignment]

        monkeypatch.setattr(member, "SharedDriver", Alone)
    with stage.running(spark):
        for name in MEMBERS:
            stage.land(name)
        eventually(stage.is_exact, "all landed")
        mine, others = lease_record(stage, "ants"), lease_record(stage, "cats")
        taken = LeaseRecord("somebody", mine.epoch + 1, 0, True, "elsewhere", 1, "manual", mine.written_at)
        stage.objects.put(paths.stream_lease("ants"), taken.encode())
        eventually(lambda: bool(ended) or lease_record(stage, "ants").epoch > taken.epoch, "the loss is noticed")
        stage.land("ants")
        assert bool(ended) == (not isolated), "a driver that does not tell them apart ends all"
        assert lease_record(stage, "cats").epoch == others.epoch
        if isolated:
            eventually(stage.is_exact, "ants are back")
