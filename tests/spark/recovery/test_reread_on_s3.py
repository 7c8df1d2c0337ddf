"""Landed objects are read again on S3: a reprocess in place, a replay of quarantine, and a start over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spark_conf import session_conf
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import local_storage
from sandbox.servers.object_store import lake_storage, running_object_store
from tests.spark.engine.conftest import DECLARED, Shop
from tests.spark.recovery.reprocess_harness import EVENTS, MENDED, ORDERS, ReprocessHarness, Row, stage_of

pytestmark = pytest.mark.integration
BUCKET = "reread"


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReprocessHarness]:
    """Three batches on s3proxy; orders without an amount are in quarantine."""
    with running_object_store(tmp_path / "server", buckets=[BUCKET]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        environment = EnvironmentSpec(
            environment="tests",
            lake=lake_storage(f"s3://{BUCKET}/lake"),
            landing=local_storage(tmp_path / "landing"),
            messaging=AwsSpec(),
        )
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in session_conf(environment).items():
            if name.startswith(f"spark.hadoop.fs.s3a.bucket.{BUCKET}."):
                hadoop.set(name.removeprefix("spark.hadoop."), value)
        declared = PipelineSpec.model_validate(
            DECLARED | {"tables": [EVENTS, ORDERS], "stream": {"lease_ttl_seconds": 3}}
        )
        yield stage_of(Shop(spark, tmp_path, declared, environment))


def in_tables_or_open(stage: ReprocessHarness) -> Counter[Row]:
    """Returns every row of a table, and every open quarantine row."""
    rows = Counter({row: count for row, count in stage.landed().items() if row[0] != "quarantine"})
    keys = Quarantine(stage.shop.lake, "shop").keys(QuarantineFilter()).to_pylist()
    return rows + Counter(("quarantine", row["_seq"], row["_position"]) for row in keys)


def test_every_event_stays_once_through_a_replay_a_reprocess_and_a_start_over(stage: ReprocessHarness) -> None:
    before = stage.landed()
    stage.redeclare(EVENTS, MENDED)

    landed = replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False).landed
    assert landed == 6
    assert in_tables_or_open(stage) == stage.expected()

    result = stage.reprocess()
    assert {each.outcome for each in result.tables} == {"committed"}
    assert stage.landed() == in_tables_or_open(stage) == stage.expected() != before
    again = stage.reprocess()
    assert {each.outcome for each in again.tables} == {"already_committed"}

    rows = sum(stage.landed().values())
    over = start_over(stage.catalog(), "shop", dry_run=False, max_rows=rows)
    assert (over.rows, over.recreated) == (rows, 3)
    assert stage.landed() == Counter()
