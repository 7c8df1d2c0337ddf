"""Records that expire before a pipeline reads them, and recreated topics, are never skipped silently."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.sources.kafka import source as kafka
from deltaworks.sources.kafka.offsets import TopicIds
from deltaworks.sources.records import record_seq
from deltaworks.testing import present
from sandbox.servers.kafka_broker import RunningBroker, running_broker
from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import ProjectOf, Topic, numbers, run
from tests.waiting import eventually

pytestmark = pytest.mark.integration
DAY_MS = 86_400_000
#: Retention is looked at often, so that a test needs not wait for it.
EAGER = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.segment.delete.delay.ms": "100",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka"), settings=EAGER) as running:
        yield running


def long_ago(days: int = 2) -> int:
    return int(time.time() * 1000) - days * DAY_MS


def configure(topic: Topic, **settings: int) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)
    topic.admin.incremental_alter_configs([resource])[resource].result()


def await_earliest(topic: Topic, offset: int, partition: int = 0) -> None:
    consumer = Consumer(topic.broker.address.client_options() | {"group.id": "looks"})
    place = TopicPartition(topic.name, partition)
    eventually(lambda: consumer.get_watermark_offsets(place, timeout=10)[0] == offset, "retention has passed")
    consumer.close()


def heartbeat(project: Project) -> Heartbeat:
    found = read_heartbeat(
        open_objects(project.catalog.environment.lake), paths.pipeline_control("shop", "heartbeat.json")
    )
    assert found is not None
    return found


def outrun(topic: Topic) -> None:
    """Let retention pass the offsets 10 to 14, which lie in a segment of their own, and keep those from 15 on."""
    topic.send(range(10, 15), timestamp=long_ago())
    topic.send(range(15, 20))
    configure(topic, retention_ms=DAY_MS)
    await_earliest(topic, 15)


@pytest.mark.parametrize("protected", [True, False])
def test_an_expired_range_is_a_row_in_quarantine_if_data_loss_is_allowed(
    spark: SparkSession,
    broker: RunningBroker,
    project_of: ProjectOf,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    topic = Topic(broker, f"outrun_{protected}", 1)
    configure(topic, segment_ms=3_600_000, retention_ms=-1)
    topic.send(range(10), timestamp=long_ago())
    project = project_of(topic.source(allow_data_loss=True))
    run(spark, project)
    assert (project.rows("shop", "quarantine"), heartbeat(project).lost_ranges) == ([], 0)
    outrun(topic)
    if not protected:
        monkeypatch.setattr(kafka, "lost_records", lambda *_, **__: [])

    run(spark, project)
    topic.send(range(20, 25))
    run(spark, project)

    assert numbers(project) == [*range(10), *range(15, 25)]
    rows = project.rows("shop", "quarantine")
    if not protected:
        assert rows == [], "five records are gone without a word"
        return
    (row,) = rows
    assert [reason["code"] for reason in row["reasons"]] == ["records_lost"]
    assert row["reasons"][0]["detail"] == (
        f"offsets 10 to 14 of {topic.name}-0 expired before they were read: at most 5 records"
    )
    assert (row["object_key"], row["_seq"], row["_position"]) == (f"{topic.name}/0/10-14", record_seq(0, 10), -1)
    assert json.loads(row["record"])["ranges"] == [[10, 14]]
    progress = present(project.lake.rows(paths.pipeline_control("shop", "progress")))
    assert [each["ranges_lost"] for each in progress.to_pylist() if each["kind"] == "batch"] == [0, 1, 0]


def test_the_heartbeat_of_that_run_reports_the_loss(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "told", 1)
    configure(topic, segment_ms=3_600_000, retention_ms=-1)
    topic.send(range(10), timestamp=long_ago())
    project = project_of(topic.source(allow_data_loss=True))
    run(spark, project)
    outrun(topic)

    run(spark, project)

    assert (heartbeat(project).lost_ranges, heartbeat(project).lost_examples) == (1, (f"{topic.name}/0/10-14",))


def test_a_completely_expired_batch_is_reported_completely(
    spark: SparkSession, broker: RunningBroker, project_of: ProjectOf
) -> None:
    topic = Topic(broker, "nothing_left", 1)
    configure(topic, retention_ms=-1)
    topic.send(range(10), timestamp=long_ago())
    project = project_of(topic.source(allow_data_loss=True, max_records_per_batch=4))
    run(spark, project)
    topic.send(range(10, 20), timestamp=long_ago())
    configure(topic, retention_ms=DAY_MS)
    await_earliest(topic, 20)
    topic.send(range(20, 22))

    run(spark, project)

    assert numbers(project) == [*range(10), 20, 21]
    told = [json.loads(row["record"])["ranges"] for row in project.rows("shop", "quarantine")]
    assert sorted(offset for ranges in told for first, last in ranges for offset in range(first, last + 1)) == list(
        range(10, 20)
    )


@pytest.mark.parametrize("protected", [True, False])
def test_a_recreated_topic_is_not_read_from_the_middle(
    spark: SparkSession,
    broker: RunningBroker,
    project_of: ProjectOf,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    topic = Topic(broker, f"anew_{protected}", 1)
    topic.send(range(10))
    project = project_of(topic.source())
    run(spark, project)
    topic.admin.delete_topics([topic.name])[topic.name].result()
    eventually(lambda: topic.name not in topic.admin.list_topics(timeout=10).topics, "the topic is gone")
    again = Topic(broker, topic.name, 1)
    again.send(range(100, 130))

    if not protected:
        monkeypatch.setattr(TopicIds, "check", lambda *_: None)
        run(spark, project)
        assert numbers(project) == [*range(10), *range(110, 130)], "ten records are passed over"
        return
    with pytest.raises(ContractError, match="deleted and recreated") as replaced:
        run(spark, project)
    assert (replaced.value.condition, replaced.value.retryable) == ("KAFKA_TOPIC_REPLACED", False)
    assert numbers(project) == list(range(10))
