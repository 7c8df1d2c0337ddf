"""Asks Kafka's brokers what Spark's source does not tell, through the JVM's own client: nothing has to be installed.

Each question opens a client and closes it: they come once a batch, and a client kept open would outlive its pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConfigError
from deltaworks.sources.kafka.offsets import Place
from deltaworks.sources.kafka.waiting import oldest_waiting_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KafkaBrokers:
    """The brokers of one pipeline. For the driver alone.

    Every question waits for an answer as long as Kafka's clients do, a minute, and raises DeltaworksError:
    STORAGE_UNREACHABLE, KAFKA_TOPIC_MISSING, SOURCE_LOGIN_REFUSED, SOURCE_CERTIFICATE_REFUSED, or what else is wrong.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """`properties` are those of a Java client. They hold secrets."""
        self._properties = dict(properties)

    def topic_ids(self, spark: SparkSession, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic, which no other topic of that name ever has."""
        with self._client(spark) as client:
            described = _described(spark, client, topics)
            return {name: str(described[name].topicId().toString()) for name in topics}

    def earliest(self, spark: SparkSession, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """By topic and partition, the offset below which retention has removed every record."""
        with self._client(spark) as client:
            described = _described(spark, client, topics)
            places = [(topic, each.partition()) for topic in topics for each in described[topic].partitions()]
            return _offsets(spark, client, places, _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def retention_seconds(self, spark: SparkSession, topics: Sequence[str]) -> float | None:
        """For how long the topic that keeps records shortest does; None where all keep them for good.

        How much a topic may hold (`retention.bytes`) says nothing of time and is not looked at.
        """
        jvm, found = _jvm(spark), []
        resource = jvm.org.apache.kafka.common.config.ConfigResource
        with self._client(spark) as client:
            of_topics = {topic: resource(resource.Type.TOPIC, topic) for topic in topics}
            wanted = jvm.java.util.ArrayList()
            for each in of_topics.values():
                wanted.add(each)
            answers = client.describeConfigs(wanted).all().get()
            for each in of_topics.values():
                said = answers.get(each)
                kept = int(said.get("retention.ms").value())
                if kept >= 0 and "delete" in said.get("cleanup.policy").value():
                    found.append(kept / 1000)
        return min(found, default=None)

    def oldest_waiting_ms(
        self, spark: SparkSession, waiting: Mapping[Place, int], *, earliest_ms: int, now_ms: int, precision_ms: int
    ) -> int | None:
        """When the oldest record was written that waits; see `kafka_waiting`. One question after another."""
        spec = _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec
        with self._client(spark) as client:

            def first_since(since_ms: int) -> dict[Place, int]:
                found = _offsets(spark, client, list(waiting), spec.forTimestamp(since_ms))
                return {place: offset for place, offset in found.items() if offset >= 0}

            return oldest_waiting_ms(
                waiting, first_since, earliest_ms=earliest_ms, now_ms=now_ms, precision_ms=precision_ms
            )

    @contextmanager
    def _client(self, spark: SparkSession) -> Iterator[Any]:
        jvm = _jvm(spark)
        properties = jvm.java.util.Properties()
        for name, value in self._properties.items():
            properties.setProperty(name, value)
        try:
            client = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
            try:
                yield client
            finally:
                client.close()
        except Exception as error:  # the JVM's own, whatever PySpark makes of them
            raise as_deltaworks_error(error) from error


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _offsets(spark: SparkSession, client: Any, places: Sequence[Place], spec: Any) -> dict[Place, int]:
    """The offset that `spec` asks for, of each partition."""
    jvm = _jvm(spark)
    wanted = jvm.java.util.HashMap()
    partitions = {place: jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
    for each in partitions.values():
        wanted.put(each, spec)
    found = client.listOffsets(wanted).all().get()
    return {place: int(found.get(each).offset()) for place, each in partitions.items()}


def _described(spark: SparkSession, client: Any, topics: Sequence[str]) -> dict[str, Any]:
    names = _jvm(spark).java.util.ArrayList()
    for topic in topics:
        names.add(topic)
    answers = client.describeTopics(names).topicNameValues()
    found = {}
    for topic in topics:
        try:
            found[topic] = answers.get(topic).get()
        except Exception as error:
            if "UnknownTopicOrPartitionException" not in str(error):
                raise
            raise ConfigError(
                "KAFKA_TOPIC_MISSING",
                f"The brokers have no topic {topic!r}.",
                hint="Create it, or mend `source.topics`; where topics are hidden, see what the user may describe.",
            ) from error
    return found
