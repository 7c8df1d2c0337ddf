"""Kafka records re-read by a reprocess: from the topic while they are retained, then from the archive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.errors import ConfigError, ContractError
from deltaworks.recovery.reprocess import read_records
from deltaworks.recovery.reprocess.dry_run import ReprocessCount, ReprocessCounter
from deltaworks.recovery.reprocess.plan import ReprocessPlanner, ReprocessRequest, open_record_resolver
from deltaworks.recovery.reprocess.run import Reprocess, ReprocessResult
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.sources.kafka.offsets import TopicIds
from deltaworks.testing import present
from sandbox.servers.kafka_broker import RunningBroker, running_broker
from tests.crashes import Crash, crash_at
from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import PIPELINE, ProjectOf, Topic, order, run

_KEYED = "      - {{name: keyed, path: _record.key, type: string}}\n"
LESS = PIPELINE.replace(_KEYED, "", 1)
ARCHIVED = "archive: {{retain_days: 30}}\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class Landed:
    """Three batches of a topic of two partitions, landed without the column that is declared now."""

    def __init__(self, spark: SparkSession, topic: Topic, project_of: ProjectOf, *, archive: bool) -> None:
        self.spark, self.topic = spark, topic
        more = ARCHIVED if archive else ""
        self.project = project_of(topic.source(), LESS + more)
        for first in (0, 20, 40):
            topic.send(range(first, first + 19), headers=[("sender", b"web")])
            topic.raw(b'{"broken', key="b")
            topic.producer.flush()
            run(spark, self.project)
        self.project = project_of(topic.source(), PIPELINE + more)
        run(spark, self.project)

    def reprocess(self, name: str = "r1", *, fault: str = "", **options: Any) -> ReprocessResult:
        request = ReprocessRequest(**options) if options else None
        return Reprocess(lambda: self.spark, self.project.catalog, "shop", fault=crash_at(fault)).run(name, request)

    def count(self, **options: Any) -> ReprocessCount:
        lake, spec = self.project.lake, self.project.spec("shop")
        home = PipelineHome.open(lake.storage, "shop")
        planner = ReprocessPlanner(
            lake, home.objects, spec, records=open_record_resolver(self.project.catalog, spec, lake, home)
        )
        return ReprocessCounter(planner, lake, home.objects, spec).count_records(
            self.spark, ReprocessRequest(**options)
        )

    def forget(self, offset: int, *, partitions: tuple[int, ...] = (0, 1)) -> None:
        """Have the brokers let go of what lies below an offset."""
        places = [TopicPartition(self.topic.name, partition, offset) for partition in partitions]
        for deleted in self.topic.admin.delete_records(places).values():
            deleted.result()

    def rows(self, table: str = "orders", *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        rows = self.project.rows("shop", table)
        kept = [{key: value for key, value in row.items() if key not in without} for row in rows]
        return sorted(kept, key=lambda row: (row["_seq"], row["_position"]))

    def version(self) -> int:
        return int(present(self.project.lake.open(paths.table("shop", "orders"))).version())

    def ends(self) -> dict[str, int]:
        """Where the first batch ended, by partition."""
        home = PipelineHome.open(self.project.lake.storage, "shop")
        first = BatchHistory(self.project.lake, home.objects, self.project.spec("shop")).completed()[0]
        return dict((first.end_offset or {})[self.topic.name])


def test_all_records_are_reread_from_the_topic_with_one_more_column(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    stage = Landed(spark, Topic(broker, "again"), project_of, archive=False)
    before, quarantined = stage.rows(without=("keyed",)), stage.rows("quarantine", without=("spec_fingerprint",))
    assert {row["keyed"] for row in stage.rows()} == {None}

    result = stage.reprocess(selection=Selection(from_start=True))

    assert result.origins == {"source": 6, "archive": 0}
    assert stage.rows(without=("keyed",)) == before
    assert {row["keyed"] for row in stage.rows()} == {f"k{number}" for number in range(5)}
    assert stage.rows("quarantine", without=("spec_fingerprint",)) == quarantined
    assert len(quarantined) == 3


def test_offsets_and_arrival_times_select_the_records_to_reread(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    stage = Landed(spark, Topic(broker, "named", 1), project_of, archive=False)
    before = stage.rows(without=("keyed",))

    stage.reprocess("offsets", selection=Selection(offsets=("named/0/5-24",)))
    numbered = {row["number"] for row in stage.rows() if row["keyed"] is not None}
    stage.reprocess("time", selection=Selection(arrived=("2020-01-01", "2099-01-01")))

    # 20 offsets of which one is a broken record: number 19 was never sent, its offset is that of the broken one.
    assert numbered == {*range(5, 19), *range(20, 25)}
    assert all(row["keyed"] is not None for row in stage.rows())
    assert stage.rows(without=("keyed",)) == before
    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        stage.reprocess("never", selection=Selection(arrived=("2020-01-01", "2020-01-02")))
    with pytest.raises(ConfigError, match="names no records of kafka"):
        stage.reprocess("unnamed", selection=Selection(offsets=("named:0:5",)))


@pytest.mark.integration
@pytest.mark.parametrize(
    "point",
    ["staged", "planned", "committed:orders", "committed"],
)
def test_a_reprocess_that_is_killed_is_completed_by_the_next_run(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf, point: str
) -> None:
    stage = Landed(spark, Topic(broker, f"killed-{point.replace(':', '-')}"), project_of, archive=False)
    before = stage.rows(without=("keyed",))

    with pytest.raises(Crash):
        stage.reprocess(fault=point, selection=Selection(batches=(0, 1)))
    result = stage.reprocess()

    assert {table.outcome for table in result.tables} <= {"committed", "already_committed", "unchanged"}
    assert stage.rows(without=("keyed",)) == before
    assert sum(row["keyed"] is not None for row in stage.rows()) == 38


def test_expired_records_of_a_topic_come_from_the_archive(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    stage = Landed(spark, Topic(broker, "archived"), project_of, archive=True)
    before = stage.rows(without=("keyed",))
    assert len(stage.project.rows("shop", "archive")) == 60
    cut = stage.ends()["0"] + 1
    stage.forget(cut)

    counted = stage.count(selection=Selection(from_start=True))
    result = stage.reprocess(selection=Selection(from_start=True))

    assert counted.origins["archive"] >= 3
    assert (counted.origins["gone"], counted.missing_keys) == (0, ())
    assert result.origins["archive"] == counted.origins["archive"]
    assert stage.rows(without=("keyed",)) == before
    assert {row["keyed"] for row in stage.rows()} == {f"k{number}" for number in range(5)}
    assert {row["sent_by"] for row in stage.rows()} == {"web"}


def test_without_an_archive_nothing_changes_until_the_loss_is_allowed(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    stage = Landed(spark, Topic(broker, "gone"), project_of, archive=False)
    ends = stage.ends()
    stage.forget(ends["0"], partitions=(0,))
    before, version = stage.rows(), stage.version()

    counted = stage.count(selection=Selection(from_start=True))
    with pytest.raises(ContractError, match="declares no archive") as gone:
        stage.reprocess("r1", selection=Selection(from_start=True))

    assert gone.value.condition == "REPROCESS_RECORDS_EXPIRED"
    assert counted.missing_keys == (f"gone/0/0-{ends['0'] - 1}",)
    assert (stage.rows(), stage.version()) == (before, version)

    result = stage.reprocess("r2", selection=Selection(from_start=True), allow_missing=True)

    assert result.missing_keys == counted.missing_keys
    assert stage.rows(without=("keyed",)) == [
        {key: value for key, value in row.items() if key != "keyed"} for row in before
    ]
    assert sum(row["keyed"] is None for row in stage.rows()) == sum(row["_seq"] < ends["0"] for row in before), (
        "those of the first partition's first batch stay as they were"
    )


@pytest.mark.integration
def test_a_recreated_topic_is_another_topic(spark: SparkSession, broker: RunningBroker, project_of: ProjectOf) -> None:
    stage = Landed(spark, Topic(broker, "renewed"), project_of, archive=True)
    before = stage.rows(without=("keyed",))
    home = PipelineHome.open(stage.project.lake.storage, "shop")
    TopicIds(home)  # the id is on record since the first start
    stage.topic.admin.delete_topics([stage.topic.name])[stage.topic.name].result()

    result = stage.reprocess(selection=Selection(from_start=True))

    assert result.origins == {"source": 0, "archive": 6}
    assert stage.rows(without=("keyed",)) == before


@pytest.mark.parametrize("protected", [True, pytest.param(False, marks=pytest.mark.integration)])
def test_a_record_missing_in_the_middle_keeps_all_rows(
    spark: SparkSession,
    broker: RunningBroker,
    project_of: ProjectOf,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    stage = Landed(spark, Topic(broker, f"middle-{protected}", 1), project_of, archive=True)
    stage.forget(60, partitions=(0,))
    archive = present(stage.project.lake.open(paths.table("shop", "archive")))
    archive.delete("position = '7'")
    before = stage.rows(without=("keyed",))
    if not protected:
        monkeypatch.setattr("deltaworks.recovery.reprocess.staging.reject_incomplete_batches", lambda *_: None)

    if protected:
        with pytest.raises(ContractError, match="yielded 19 records, but had 20") as missing:
            stage.reprocess(selection=Selection(from_start=True))
        assert missing.value.condition == "REPROCESS_RECORDS_MISSING"
        assert stage.rows(without=("keyed",)) == before
    else:
        stage.reprocess(selection=Selection(from_start=True))
        assert len(stage.rows()) == len(before) - 1, "a row is lost without the count"
    assert read_records.reject_incomplete_batches.__name__ == "reject_incomplete_batches"


def test_malformed_and_empty_records_are_archived_unchanged(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "raw", 1)
    project: Project = project_of(topic.source(tombstones="event"), PIPELINE + ARCHIVED)
    topic.raw(order(1), key="k", headers=[("sender", b"web"), ("other", b"\xff")], timestamp=1_700_000_000_123)
    topic.raw(b"\xff\xfenot json", key=b"\x00")
    topic.raw(None, key="gone")
    topic.producer.flush()

    result = run(spark, project)

    rows = sorted(project.rows("shop", "archive"), key=lambda row: row["_seq"])
    assert result.rows == 1, "the archive's rows are none that landed"
    assert [(row["stream"], row["partition"], row["position"]) for row in rows] == [
        ("raw", "0", str(offset)) for offset in range(3)
    ]
    assert [row["value"] for row in rows] == [order(1), b"\xff\xfenot json", None]
    assert [row["record_key"] for row in rows] == [b"k", b"\x00", b"gone"]
    assert rows[0]["headers"] == [{"key": "sender", "value": b"web"}, {"key": "other", "value": b"\xff"}]
    assert rows[0]["arrived_at_us"] == 1_700_000_000_123_000
    assert {row["_batch_id"] for row in rows} == {0}
    assert {row["_seq"] for row in rows} == {0, 1, 2}
    assert {str(row["archive_date"]) for row in rows} == {f"{row['_ingested_at']:%Y-%m-%d}" for row in rows}


@pytest.mark.parametrize(
    "point",
    [
        "prepared",
        *(
            pytest.param(point, marks=pytest.mark.integration)
            for point in ("files_written", "committed:archive", "committed")
        ),
    ],
)
def test_a_run_that_ends_anywhere_in_a_batch_archives_every_record_once(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf, point: str
) -> None:
    topic = Topic(broker, f"once-{point.replace(':', '-')}")
    topic.send(range(30))
    project = project_of(topic.source(max_records_per_batch=10), PIPELINE + ARCHIVED)

    with pytest.raises(Exception, match=point):
        run(spark, project, crash_at(point))
    run(spark, project)

    rows = project.rows("shop", "archive")
    assert sorted(row["value"] for row in rows) == sorted(order(number) for number in range(30))
    assert {(row["_seq"], row["_batch_id"]) for row in rows} == {
        (row["_seq"], row["_batch_id"]) for row in project.rows("shop", "orders")
    }
