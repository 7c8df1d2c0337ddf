"""Asks Kafka's brokers what Spark's source does not tell, through the JVM's own client: nothing has to be installed.

Each question opens a client and closes it: they come once a batch, and a client kept open would outlive its pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltaworks.errors import ConfigError
from deltaworks.job import as_deltaworks_error

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
        jvm = _jvm(spark)
        admin = jvm.org.apache.kafka.clients.admin
        with self._client(spark) as client:
            described, wanted, places = _described(spark, client, topics), jvm.java.util.HashMap(), []
            for topic in topics:
                for each in described[topic].partitions():
                    place = jvm.org.apache.kafka.common.TopicPartition(topic, each.partition())
                    wanted.put(place, admin.OffsetSpec.earliest())
                    places.append(place)
            found = client.listOffsets(wanted).all().get()
            return {(place.topic(), place.partition()): int(found.get(place).offset()) for place in places}

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
