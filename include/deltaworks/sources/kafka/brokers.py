"""Kafka's Java clients: how they are configured, and what is asked of brokers that Spark's source does not report.

The clients are the JVM's own, so nothing has to be installed. Each question opens one and closes it: they come once a
batch, and a client kept open would outlive its pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConfigError
from deltaworks.sources.kafka.offsets import TopicPartition
from deltaworks.specs.base import Reference, resolve_text
from deltaworks.specs.sources.records import KafkaSecuritySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: For a time in epoch milliseconds, the first offset of a record that is not older; a partition without one is skipped.
FirstOffsetLookup = Callable[[int], Mapping[TopicPartition, int]]


def client_properties(security: KafkaSecuritySpec) -> dict[str, str]:
    """What a client is configured with. Holds secrets.

    As options of Spark's source they begin with `kafka.`, and Spark's settings of redaction keep them out of plans and
    pages.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED; SOURCE_CERTIFICATE_MISSING, a truststore or keystore is no file here.
    """
    properties: dict[str, str] = {"security.protocol": security.protocol}
    if security.mechanism and security.username and security.password:
        properties["sasl.mechanism"] = security.mechanism
        login = f"username={_quoted(security.username.resolve())} password={_quoted(security.password.resolve())}"
        properties["sasl.jaas.config"] = f"{_LOGIN_MODULES[security.mechanism]} required {login};"
    if security.truststore is not None:
        properties["ssl.truststore.location"] = _existing_file("truststore", security.truststore)
        properties["ssl.truststore.type"] = security.truststore_type
    if security.keystore is not None:
        properties["ssl.keystore.location"] = _existing_file("keystore", security.keystore)
        properties["ssl.keystore.type"] = security.keystore_type
    secrets = {
        "ssl.truststore.password": security.truststore_password,
        "ssl.keystore.password": security.keystore_password,
        "ssl.key.password": security.key_password,
    }
    return properties | {name: secret.resolve() for name, secret in secrets.items() if secret is not None}


def _existing_file(name: str, declared: Reference | str) -> str:
    path = resolve_text(declared)
    if not Path(path).is_file():
        raise ConfigError(
            "SOURCE_CERTIFICATE_MISSING",
            f"source.security.{name}: {path} is no file on this machine.",
            hint="Put it there, for the driver and for every worker, or mend the path.",
        )
    return path


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
            described = _describe_topics(spark, client, topics)
            return {name: str(described[name].topicId().toString()) for name in topics}

    def earliest_offsets(self, spark: SparkSession, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Of each partition, the offset below which retention has removed every record."""
        with self._client(spark) as client:
            described = _describe_topics(spark, client, topics)
            keys = [(topic, info.partition()) for topic in topics for info in described[topic].partitions()]
            return _list_offsets(spark, client, keys, _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def has_compaction(self, spark: SparkSession, topics: Sequence[str]) -> bool:
        """Whether one of the topics may drop a record for a newer one of its key."""
        with self._client(spark) as client:
            configs = _topic_configs(spark, client, topics)
            return any("compact" in config.get("cleanup.policy").value() for config in configs)

    def retention_seconds(self, spark: SparkSession, topics: Sequence[str]) -> float | None:
        """For how long the topic that keeps records shortest does; None where all keep them for good.

        How much a topic may hold (`retention.bytes`) says nothing of time and is not looked at.
        """
        retentions = []
        with self._client(spark) as client:
            for config in _topic_configs(spark, client, topics):
                kept_ms = int(config.get("retention.ms").value())
                if kept_ms >= 0 and "delete" in config.get("cleanup.policy").value():
                    retentions.append(kept_ms / 1000)
        return min(retentions, default=None)

    def oldest_unread_ms(
        self,
        spark: SparkSession,
        unread: Mapping[TopicPartition, int],
        *,
        earliest_ms: int,
        now_ms: int,
        precision_ms: int,
    ) -> int | None:
        """When the oldest record was written that waits; see the function of that name. Several questions, in turn."""
        spec = _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec
        with self._client(spark) as client:

            def first_since(since_ms: int) -> dict[TopicPartition, int]:
                offsets = _list_offsets(spark, client, list(unread), spec.forTimestamp(since_ms))
                return {partition: offset for partition, offset in offsets.items() if offset >= 0}

            return oldest_unread_ms(
                unread, first_since, earliest_ms=earliest_ms, now_ms=now_ms, precision_ms=precision_ms
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


def _list_offsets(
    spark: SparkSession, client: Any, keys: Sequence[TopicPartition], spec: Any
) -> dict[TopicPartition, int]:
    """The offset that `spec` asks for, of each partition."""
    jvm = _jvm(spark)
    request = jvm.java.util.HashMap()
    partitions = {key: jvm.org.apache.kafka.common.TopicPartition(*key) for key in keys}
    for partition in partitions.values():
        request.put(partition, spec)
    answers = client.listOffsets(request).all().get()
    return {key: int(answers.get(partition).offset()) for key, partition in partitions.items()}


def _topic_configs(spark: SparkSession, client: Any, topics: Sequence[str]) -> list[Any]:
    """The configuration of each topic."""
    jvm = _jvm(spark)
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    of_topics = [resource(resource.Type.TOPIC, topic) for topic in topics]
    resources = jvm.java.util.ArrayList()
    for topic in of_topics:
        resources.add(topic)
    answers = client.describeConfigs(resources).all().get()
    return [answers.get(topic) for topic in of_topics]


def _describe_topics(spark: SparkSession, client: Any, topics: Sequence[str]) -> dict[str, Any]:
    names = _jvm(spark).java.util.ArrayList()
    for topic in topics:
        names.add(topic)
    answers = client.describeTopics(names).topicNameValues()
    descriptions = {}
    for topic in topics:
        try:
            descriptions[topic] = answers.get(topic).get()
        except Exception as error:
            if "UnknownTopicOrPartitionException" not in str(error):
                raise
            raise ConfigError(
                "KAFKA_TOPIC_MISSING",
                f"The brokers have no topic {topic!r}.",
                hint="Create it, or mend `source.topics`; where topics are hidden, see what the user may describe.",
            ) from error
    return descriptions


def oldest_unread_ms(
    unread: Mapping[TopicPartition, int],
    first_offsets: FirstOffsetLookup,
    *,
    earliest_ms: int,
    now_ms: int,
    precision_ms: int,
) -> int | None:
    """When the oldest record that waits was written, at most `precision_ms` too early; None where none waits.

    Brokers answer, for a time, which record is the first that is not older, of all partitions at once. So the time is
    found by halving the span between two bounds. Where producers set the times of records themselves and not in order,
    the answer is as good as theirs. A record older than `earliest_ms` counts as written then.
    """
    if not unread:
        return None

    def holds_older(than_ms: int) -> bool:
        first = first_offsets(than_ms)
        return any(key not in first or first[key] > position for key, position in unread.items())

    low, high = earliest_ms, max(earliest_ms, now_ms)
    if holds_older(low):
        return low
    while high - low > max(1, precision_ms):
        middle = (low + high) // 2
        low, high = (low, middle) if holds_older(middle) else (middle, high)
    return low
