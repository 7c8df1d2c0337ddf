"""A pipeline that reads Kafka: its tables, against a real broker."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConfigError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.sources.kafka.source import KafkaSource
from deltaworks.sources.records import record_seq
from deltaworks.tables.lake import Lake
from sandbox.servers.kafka_broker import BrokerLogin, RunningBroker, running_broker
from tests.crashes import crash_at
from tests.spark.sources.kafka_harness import PIPELINE, RULES, ProjectOf, Topic, numbers, order, run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    login = BrokerLogin.generate()
    with running_broker(tmp_path_factory.mktemp("kafka"), login=login) as running:
        yield running


def test_records_of_all_partitions_land_once_with_keys_headers_and_positions(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "all")
    topic.send(range(50), headers=[("sender", b"web"), ("other", b"\xff")])
    project = project_of(topic.source(max_records_per_batch=20))

    first = run(spark, project)
    topic.send(range(50, 60))
    second = run(spark, project)

    rows = project.rows("shop", "orders")
    assert numbers(project) == list(range(60))
    assert (first.rows, second.rows) == (50, 10)
    assert first.batches >= 3, "no batch takes more than it may"
    assert {row["sent_by"] for row in rows if row["number"] < 50} == {"web"}
    assert all(row["keyed"] == f"k{row['number'] % 5}" for row in rows)
    places = {record_seq(partition, offset) for partition in (0, 1) for offset in range(60)}
    assert {row["_seq"] for row in rows} < places
    assert len({(row["_seq"], row["_position"]) for row in rows}) == 60
    for key in range(5):
        sent = [row["number"] for row in sorted(rows, key=lambda row: row["_seq"]) if row["keyed"] == f"k{key}"]
        assert sent == sorted(sent), "order within a key"


def test_the_backlog_reports_the_oldest_record_and_the_retention(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "kept", 0)
    topic.admin.create_topics([NewTopic("kept", 2, config={"retention.ms": "3600000"})])["kept"].result()
    written = int(time.time() * 1000) - 1_800_000
    for number, partition in enumerate((0, 0, 0, 1, 1)):
        topic.raw(order(number), partition=partition, timestamp=written + 60_000 * number)
    topic.producer.flush()
    project = project_of(topic.source())
    source = KafkaSource(project.catalog, project.catalog.pipeline("shop"))
    source.frame(spark, start=None)

    # Of partition 0 the first record was read, of the other one all.
    found = source.backlog({"endOffset": {"kept": {"0": 1, "1": 2}}, "latestOffset": {"kept": {"0": 3, "1": 2}}})

    assert (found["backlog_records"], found["retention_seconds"]) == (2, 3600.0)
    oldest = dt.datetime.fromisoformat(found["oldest_pending_at"]).timestamp() * 1000
    assert written + 60_000 - 4_000 <= oldest <= written + 60_000
    nothing = source.backlog({"endOffset": {"kept": {"0": 3, "1": 2}}, "latestOffset": {"kept": {"0": 3, "1": 2}}})
    assert (nothing["backlog_records"], nothing["oldest_pending_at"]) == (0, None)


def test_a_record_with_several_events_and_a_malformed_record(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "mixed", 1)
    topic.raw(order(1) + order(2) + b"[" + order(3) + b"]")
    topic.raw(b'{"name": "order", broken', key=b"k", headers=[("sender", b"app")])
    topic.raw(b"\x1f\x8bnot gzip")
    topic.raw(b"")
    topic.raw(None, key=b"gone")
    topic.producer.flush()
    project = project_of(topic.source())

    run(spark, project)

    assert numbers(project) == [1, 2, 3]
    quarantined = {row["object_key"]: row for row in project.rows("shop", "quarantine")}
    codes = {key: [reason["code"] for reason in row["reasons"]] for key, row in quarantined.items()}
    assert codes == {"mixed/0/1": ["malformed"], "mixed/0/2": ["malformed"], "mixed/0/4": ["tombstone"]} | {
        key: found for key, found in codes.items() if key == "mixed/0/3"
    }
    assert quarantined["mixed/0/1"]["raw"] == '{"name": "order", broken'
    assert json.loads(quarantined["mixed/0/1"]["record"])["headers"] == {"sender": "app"}
    assert quarantined["mixed/0/2"]["raw_bytes"] == 10, "what cannot be read is kept, since nobody else keeps it"
    assert json.loads(quarantined["mixed/0/4"]["record"])["key"] == "gone"


def test_microseconds_sent_as_milliseconds_do_not_stop_the_stream(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "micros", 0)
    settings = {"message.timestamp.after.max.ms": str(2**63 - 1)}  # as brokers before 4.0 have it
    topic.admin.create_topics([NewTopic("micros", 1, config=settings)])["micros"].result()
    topic.raw(order(1), timestamp=1_700_000_000_000_000)
    topic.raw(order(2))
    topic.producer.flush()
    project = project_of(topic.source())

    run(spark, project)

    assert numbers(project) == [1, 2]
    [batch] = Lake(project.catalog.environment.lake).open(paths.checkpoint_store("shop")).to_pyarrow_table().to_pylist()
    noted = json.loads(batch["source_metadata"])
    assert (noted["times_out_of_range"], noted["newest_arrived_at"][:4]) == (1, "9999")


def test_tombstones_can_be_events(spark: SparkSession, broker: RunningBroker, project_of: ProjectOf) -> None:
    topic = Topic(broker, "tombstones", 1)
    topic.raw(None, key=b"gone")
    topic.producer.flush()
    declared = PIPELINE.replace("name: {{path: name}}", "name: {{constant: change}}").replace(
        "time: {{path: time, unit: epoch_seconds}}, id: [id]", "time: {{path: _record.timestamp}}"
    )
    project = project_of(topic.source(tombstones="event"), declared)

    run(spark, project)

    assert [row["keyed"] for row in project.rows("shop", "removals")] == ["gone"]
    assert project.rows("shop", "quarantine") == []


def test_a_quarantined_record_is_replayed_with_its_metadata(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "replayed", 1)
    topic.raw(order(1), key=b"k1", headers=[("sender", b"web")])
    topic.producer.flush()
    strict = PIPELINE.replace("    columns:\n      - {{name: number", RULES + "    columns:\n      - {{name: number")
    run(spark, project_of(topic.source(), strict))

    mended = project_of(topic.source())
    assert (numbers(mended), len(mended.rows("shop", "quarantine"))) == ([], 1)
    result = replay_quarantine(mended.catalog, "shop", QuarantineFilter(), dry_run=False)

    assert result.landed == 1
    assert [(row["number"], row["sent_by"], row["keyed"]) for row in mended.rows("shop", "orders")] == [
        (1, "web", "k1")
    ]


def test_records_of_an_aborted_transaction_are_never_read(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "transactions", 1)
    sender = Producer(broker.address.client_options() | {"transactional.id": "t"})
    sender.init_transactions()
    for start, ends in (
        (0, sender.commit_transaction),
        (10, sender.abort_transaction),
        (20, sender.commit_transaction),
    ):
        sender.begin_transaction()
        for number in range(start, start + 5):
            sender.produce(topic.name, order(number))
        sender.flush()
        ends()
    project = project_of(topic.source(max_records_per_batch=4))

    run(spark, project)

    assert numbers(project) == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]


def test_partitions_added_later_are_read_from_their_beginning(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "growing", 1)
    topic.send(range(5))
    project = project_of(topic.source())
    run(spark, project)

    topic.admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result()
    grown = Topic(broker, topic.name, partitions=0)
    for number in range(5, 35):
        grown.raw(order(number), partition=number % 3)
    grown.producer.flush()
    run(spark, project)

    assert numbers(project) == list(range(35))


@pytest.mark.parametrize(
    "point",
    [
        "prepared",
        # Their twins in tests/spark/engine/test_batches.py end a batch at each point without a query.
        *(
            pytest.param(point, marks=pytest.mark.integration)
            for point in ("files_written", "committed:orders", "committed", "completed")
        ),
    ],
)
def test_a_run_that_ends_anywhere_in_a_batch_neither_loses_nor_duplicates_rows(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf, point: str
) -> None:
    topic = Topic(broker, f"broken_{point.replace(':', '_')}")
    topic.send(range(30))
    project = project_of(topic.source(max_records_per_batch=10))

    with pytest.raises(Exception, match=point):
        run(spark, project, fault=crash_at(point))
    topic.send(range(30, 40))
    run(spark, project)

    assert numbers(project) == list(range(40))


def test_a_query_resumes_at_the_ledgers_offsets_after_a_lost_checkpoint(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "lost_checkpoint")
    topic.send(range(20))
    project = project_of(topic.source())
    run(spark, project)

    shutil.rmtree(Path(project.catalog.environment.lake.prefix) / paths.checkpoint("shop", 1, 1))
    topic.send(range(20, 30))
    run(spark, project)

    assert numbers(project) == list(range(30))


@pytest.mark.integration
def test_reading_resumes_after_a_broker_outage(spark: SparkSession, tmp_path: Path, project_of: ProjectOf) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        topic = Topic(broker, "restarted")
        topic.send(range(10))
        project = project_of(topic.source())
        run(spark, project)
        topic.send(range(10, 20))
        broker.kill()
        broker.start()
        topic.send(range(20, 30))
        run(spark, project)

    assert numbers(project) == list(range(30))


def test_records_that_expired_unread_stop_the_stream(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "expired", 1)
    topic.send(range(10))
    project = project_of(topic.source())
    run(spark, project)
    topic.send(range(10, 20))
    topic.admin.delete_records([TopicPartition(topic.name, 0, 15)])[TopicPartition(topic.name, 0)].result()

    with pytest.raises(StreamingQueryException) as stopped:
        run(spark, project)
    told = as_deltaworks_error(stopped.value)
    assert (told.condition, told.retryable) == ("SOURCE_EXPIRED", False)
    assert f"{topic.name}-0" in told.message
    assert numbers(project) == list(range(10))


def test_a_missing_topic_is_named(spark: SparkSession, broker: RunningBroker, project_of: ProjectOf) -> None:
    topic = Topic(broker, "there", 1)

    with pytest.raises(ConfigError, match="no topic 'absent'") as missing:
        run(spark, project_of(topic.source(topics=[topic.name, "absent"])))
    assert missing.value.condition == "KAFKA_TOPIC_MISSING"


@pytest.mark.parametrize("known", [True, False])
def test_a_login_by_scram(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    topic, login = Topic(broker, f"scram_{known}"), broker.address.login
    topic.send(range(10))
    assert login is not None
    monkeypatch.setenv("KAFKA_USER", login.username)
    monkeypatch.setenv("KAFKA_PASSWORD", login.password if known else "wrong")
    security = {
        "protocol": "SASL_PLAINTEXT",
        "mechanism": "SCRAM-SHA-512",
        "username": "env:KAFKA_USER",
        "password": "env:KAFKA_PASSWORD",
    }
    project = project_of(topic.source(security=security, bootstrap_servers=broker.address.sasl_bootstrap))

    if known:
        run(spark, project)
        assert numbers(project) == list(range(10))
        return
    with pytest.raises(ConfigError) as refused:
        run(spark, project)
    assert (refused.value.condition, refused.value.retryable) == ("SOURCE_LOGIN_REFUSED", False)
    assert "wrong" not in str(refused.value)
