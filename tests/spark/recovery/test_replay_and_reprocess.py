"""A replay and a reprocess in any order, also on S3: no row is lost, doubled or wrongly closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
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
from tests.crashes import Crash, crash_at
from tests.spark.engine.conftest import DECLARED, Shop
from tests.spark.recovery.reprocess_harness import EVENTS, MENDED, ORDERS, ReprocessHarness, Row, stage_of

MakeStage = Callable[..., ReprocessHarness]


def replay(stage: ReprocessHarness, fault: str = "") -> int:
    return replay_quarantine(stage.catalog(), "shop", QuarantineFilter(), dry_run=False, fault=crash_at(fault)).landed


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


BUCKET = "reread"


@pytest.fixture
def stage_on_s3(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReprocessHarness]:
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


@pytest.mark.integration
def test_every_event_stays_once_through_a_replay_a_reprocess_and_a_start_over(stage_on_s3: ReprocessHarness) -> None:
    before = stage_on_s3.landed()
    stage_on_s3.redeclare(EVENTS, MENDED)

    landed = replay_quarantine(stage_on_s3.catalog(), "shop", QuarantineFilter(), dry_run=False).landed
    assert landed == 6
    assert in_tables_or_open(stage_on_s3) == stage_on_s3.expected()

    result = stage_on_s3.reprocess()
    assert {each.outcome for each in result.tables} == {"committed"}
    assert stage_on_s3.landed() == in_tables_or_open(stage_on_s3) == stage_on_s3.expected() != before
    again = stage_on_s3.reprocess()
    assert {each.outcome for each in again.tables} == {"already_committed"}

    rows = sum(stage_on_s3.landed().values())
    over = start_over(stage_on_s3.catalog(), "shop", dry_run=False, max_rows=rows)
    assert (over.rows, over.recreated) == (rows, 3)
    assert stage_on_s3.landed() == Counter()
