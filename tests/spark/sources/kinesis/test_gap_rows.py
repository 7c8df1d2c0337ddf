"""A pipeline that continues after expired Kinesis records: the gap is a quarantine row and a health condition."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import open_objects
from deltaworks.engine.runner import IngestRun
from deltaworks.errors import DeltaworksError
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.specs.storage import AwsSpec
from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import ProjectOf, numbers, order
from tests.spark.sources.kinesis.conftest import QueryHarness

pytestmark = pytest.mark.integration
MESSAGING = {"access_key": "env:DELTAWORKS_AWS_ACCESS_KEY", "secret_key": "env:DELTAWORKS_AWS_SECRET_KEY"}


def put(harness: QueryHarness, *numbers: int) -> None:
    for number in numbers:
        harness.put(order(number).decode(), key=str(number))


def with_stream(project: Project, harness: QueryHarness) -> Project:
    aws = AwsSpec.model_validate({"endpoint": harness.server.endpoint} | MESSAGING)
    environment = project.catalog.environment.model_copy(update={"messaging": aws})
    return replace(project, catalog=replace(project.catalog, environment=environment))


def run(spark: SparkSession, project: Project) -> None:
    IngestRun(spark, project.catalog, "shop", parts=STREAM_PARTS, available_now=True).run()


def pass_retention(harness: QueryHarness, project: Project, *, hours: float) -> None:
    """Make what is in the stream, and the query's last reading of it, older than the stream keeps records."""
    harness.age(hours)
    state = Path(project.catalog.environment.lake.prefix) / paths.pipeline_control("shop", "kinesis")
    for path in state.rglob("*/shardId-*.json"):
        end = json.loads(path.read_text())
        end["end"]["since"] = (datetime.fromisoformat(end["end"]["since"]) - timedelta(hours=hours)).isoformat()
        path.write_text(json.dumps(end))


@pytest.mark.parametrize("protected", [True, False])
def test_a_gap_is_a_row_in_quarantine_if_data_loss_is_allowed(
    make_harness: Callable[..., QueryHarness],
    spark: SparkSession,
    project_of: ProjectOf,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    harness = make_harness()
    source = {"kind": "kinesis", "stream": harness.name}
    project = with_stream(project_of(source), harness)
    put(harness, 1, 2)
    run(spark, project)
    put(harness, 3, 4)
    pass_retention(harness, project, hours=30)
    put(harness, 5)
    with pytest.raises(Exception, match="KINESIS_POSITION_EXPIRED") as stopped:
        run(spark, project)
    assert isinstance(as_deltaworks_error(stopped.value), DeltaworksError)
    assert numbers(project) == [1, 2]

    if not protected:
        monkeypatch.setattr(QueryState, "gaps", lambda *_: [])
    allowed = with_stream(project_of(source | {"allow_data_loss": True}), harness)
    run(spark, allowed)
    lost = read_heartbeat(open_objects(allowed.catalog.environment.lake), "control/pipelines/shop/heartbeat.json")
    put(harness, 6)
    run(spark, allowed)

    assert numbers(allowed) == [1, 2, 5, 6]
    rows = allowed.rows("shop", "quarantine")
    assert lost is not None
    if not protected:
        assert (rows, lost.lost_ranges) == ([], 0), "two records are gone without a word"
        return
    (row,) = rows
    assert [reason["code"] for reason in row["reasons"]] == ["records_lost"]
    assert "shardId-000000000000 behind 49" in row["reasons"][0]["detail"]
    record = json.loads(row["record"])
    assert (record["stream"], record["shard_id"]) == (harness.name, "shardId-000000000000")
    assert record["first"] > record["after"]
    assert lost.lost_ranges == 1
