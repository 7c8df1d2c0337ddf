"""Configures Kafka's Java clients, and reads broker metadata that Spark's source does not report.

Uses the clients in Spark's JVM, so nothing has to be installed. Each call opens and closes a client: there is one call
per batch, and a cached client would outlive its pipeline.
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
from deltaworks.specs.record_sources import KafkaSecuritySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: Returns the first offset at or after a time in epoch milliseconds, per partition that has one.
FirstOffsetLookup = Callable[[int], Mapping[TopicPartition, int]]


def client_properties(security: KafkaSecuritySpec) -> dict[str, str]:
    """Returns the properties of a Java client. They contain secrets.

    As options of Spark's source they begin with `kafka.`; Spark's redaction settings hide them in plans and pages.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED; SOURCE_CERTIFICATE_MISSING, a truststore or keystore does not exist.
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
            "SOURCE_CERTIFICATE_MISSING", f"source.security.{name}: {path} does not exist on this machine."
        )
    return path


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class KafkaBrokers:
    """The brokers of one pipeline. Used by the driver only.

    Each call waits up to a minute, as Kafka's clients do, and raises DeltaworksError: STORAGE_UNREACHABLE,
    KAFKA_TOPIC_MISSING, SOURCE_LOGIN_REFUSED, SOURCE_CERTIFICATE_REFUSED, or another error.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Stores the configuration of a Java client; it contains secrets."""
        self._properties = dict(properties)

    def topic_ids(self, spark: SparkSession, topics: Sequence[str]) -> dict[str, str]:
        """Returns the id of each topic. A recreated topic has another id."""
        with self._client(spark) as client:
            described = _describe_topics(spark, client, topics)
            return {name: str(described[name].topicId().toString()) for name in topics}

    def earliest_offsets(self, spark: SparkSession, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Returns the earliest retained offset of each partition."""
        with self._client(spark) as client:
            described = _describe_topics(spark, client, topics)
            keys = [(topic, info.partition()) for topic in topics for info in described[topic].partitions()]
            return _list_offsets(spark, client, keys, _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def has_compaction(self, spark: SparkSession, topics: Sequence[str]) -> bool:
        """Returns whether one of the topics is compacted."""
        with self._client(spark) as client:
            configs = _topic_configs(spark, client, topics)
            return any("compact" in config.get("cleanup.policy").value() for config in configs)

    def retention_seconds(self, spark: SparkSession, topics: Sequence[str]) -> float | None:
        """Returns the shortest retention of the topics in seconds; None if all retain records forever.

        Size-based retention (`retention.bytes`) is ignored.
        """
        retentions = []
        with self._client(spark) as client:
            for config in _topic_configs(spark, client, topics):
                retention_ms = int(config.get("retention.ms").value())
                if retention_ms >= 0 and "delete" in config.get("cleanup.policy").value():
                    retentions.append(retention_ms / 1000)
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
        """Returns when the oldest unread record was written, in epoch milliseconds; see the function
        `oldest_unread_ms`. Makes several requests.
        """
        spec = _jvm(spark).org.apache.kafka.clients.admin.OffsetSpec
        with self._client(spark) as client:

            def first_offsets(since_ms: int) -> dict[TopicPartition, int]:
                offsets = _list_offsets(spark, client, list(unread), spec.forTimestamp(since_ms))
                return {partition: offset for partition, offset in offsets.items() if offset >= 0}

            return oldest_unread_ms(
                unread, first_offsets, earliest_ms=earliest_ms, now_ms=now_ms, precision_ms=precision_ms
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
        except Exception as error:  # a Java exception, in any form PySpark gives it
            raise as_deltaworks_error(error) from error


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _list_offsets(
    spark: SparkSession, client: Any, keys: Sequence[TopicPartition], spec: Any
) -> dict[TopicPartition, int]:
    """Returns the offset of each partition that `spec` (an OffsetSpec of the Java client) selects."""
    jvm = _jvm(spark)
    request = jvm.java.util.HashMap()
    partitions = {key: jvm.org.apache.kafka.common.TopicPartition(*key) for key in keys}
    for partition in partitions.values():
        request.put(partition, spec)
    results = client.listOffsets(request).all().get()
    return {key: int(results.get(partition).offset()) for key, partition in partitions.items()}


def _topic_configs(spark: SparkSession, client: Any, topics: Sequence[str]) -> list[Any]:
    """Returns the configuration of each topic."""
    jvm = _jvm(spark)
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    topic_resources = [resource(resource.Type.TOPIC, topic) for topic in topics]
    resources = jvm.java.util.ArrayList()
    for topic in topic_resources:
        resources.add(topic)
    results = client.describeConfigs(resources).all().get()
    return [results.get(topic) for topic in topic_resources]


def _describe_topics(spark: SparkSession, client: Any, topics: Sequence[str]) -> dict[str, Any]:
    names = _jvm(spark).java.util.ArrayList()
    for topic in topics:
        names.add(topic)
    results = client.describeTopics(names).topicNameValues()
    descriptions = {}
    for topic in topics:
        try:
            descriptions[topic] = results.get(topic).get()
        except Exception as error:
            if "UnknownTopicOrPartitionException" not in str(error):
                raise
            raise ConfigError("KAFKA_TOPIC_MISSING", f"The brokers have no topic {topic!r}.") from error
    return descriptions


def oldest_unread_ms(
    unread: Mapping[TopicPartition, int],
    first_offsets: FirstOffsetLookup,
    *,
    earliest_ms: int,
    now_ms: int,
    precision_ms: int,
) -> int | None:
    """Returns when the oldest unread record was written, at most `precision_ms` too early; None if all records are
    read.

    For a given time, brokers return the first record at or after it in every partition. A binary search over that time
    finds the result. If producers set timestamps out of order, it is inaccurate. A record older than `earliest_ms`
    counts as written at that time.
    """
    if not unread:
        return None

    def has_older(cutoff_ms: int) -> bool:
        first = first_offsets(cutoff_ms)
        return any(key not in first or first[key] > position for key, position in unread.items())

    low, high = earliest_ms, max(earliest_ms, now_ms)
    if has_older(low):
        return low
    while high - low > max(1, precision_ms):
        middle = (low + high) // 2
        low, high = (low, middle) if has_older(middle) else (middle, high)
    return low
