"""Topics of Kafka as a source, through Spark's own connector: each record is a payload, read in a task.

Only what is committed is read: records of aborted transactions are never seen. A record's `_seq` is made of its topic's
place in the declaration, its partition and its offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control.clock import micros_as_iso
from deltaworks.errors import ContractError
from deltaworks.sources.record_seq import record_seq
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.source import Compression, KafkaSecuritySpec, KafkaSourceSpec
from deltaworks.streaming.batch_sources.record_payloads import record_payload, text_of, unreadable
from deltaworks.streaming.parsing.parse import Payload
from deltaworks.streaming.parsing.reasons import Reason, ReasonCode
from deltaworks.streaming.parsing.record_fields import reads_record_fields
from deltaworks.streaming.source_slices import Record, RecordSlice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Of the bits that number partitions, those for the partition within its topic.
PARTITION_BITS = 13
_COLUMNS = ("topic", "partition", "offset", "timestamp", "value")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class KafkaSource:
    """The topics a pipeline declares."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KafkaSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._with_fields = reads_record_fields(spec)
        self._tasks = spec.stream.tasks_per_batch

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Records, committed ones only, at most `max_records_per_batch` a batch."""
        source = self._source
        options = {
            "kafka.bootstrap.servers": resolve_text(source.bootstrap_servers),
            "subscribe": ",".join(source.topics),
            "startingOffsets": source.starting_offsets if start is None else json.dumps(start),
            "maxOffsetsPerTrigger": str(source.max_records_per_batch),
            "minPartitions": str(self._tasks),
            "failOnDataLoss": str(not source.allow_data_loss).lower(),
            "includeHeaders": str(self._with_fields).lower(),
            "kafka.isolation.level": "read_committed",
            **(security_options(source.security) if source.security else {}),
        }
        return spark.readStream.format("kafka").options(**options).load()

    def slice_of(self, batch: DataFrame, *, batch_id: int) -> RecordSlice:
        """The batch's records; the driver sees none of them."""
        source = self._source
        columns = [*_COLUMNS, *(("key", "headers") if self._with_fields else ())]
        reader = KafkaReader(
            topics=source.topics,
            tombstones_are_events=source.tombstones == "event",
            with_fields=self._with_fields,
            compression=source.compression,
            max_bytes=source.max_event_bytes,
        )
        return RecordSlice(batch.select(*columns), reader)

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Records that the brokers had when the query last looked and that no batch has read."""
        if not progress or not progress.get("latestOffset"):
            return {}
        return {"backlog_records": records_between(_offsets(progress["endOffset"]), _offsets(progress["latestOffset"]))}


def _offsets(told: Any) -> dict[str, dict[str, int]]:
    found = json.loads(told) if isinstance(told, str) else told
    return found if isinstance(found, dict) else {}


def records_between(end: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> int:
    """How many offsets lie between two positions, markers of transactions among them."""
    return sum(
        max(0, newest - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, newest in partitions.items()
    )


def security_options(security: KafkaSecuritySpec) -> dict[str, str]:
    """Options of Spark's source. They hold secrets: Spark's settings of redaction keep them out of plans and pages."""
    options: dict[str, str] = {"kafka.security.protocol": security.protocol}
    if security.mechanism and security.username and security.password:
        options["kafka.sasl.mechanism"] = security.mechanism
        login = f"username={_quoted(security.username.resolve())} password={_quoted(security.password.resolve())}"
        options["kafka.sasl.jaas.config"] = f"{_LOGIN[security.mechanism]} required {login};"
    if security.truststore is not None:
        options["kafka.ssl.truststore.location"] = resolve_text(security.truststore)
        options["kafka.ssl.truststore.type"] = security.truststore_type
    if security.truststore_password is not None:
        options["kafka.ssl.truststore.password"] = security.truststore_password.resolve()
    return options


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReader:
    """Makes payloads of Kafka's records inside a task."""

    topics: tuple[str, ...]
    tombstones_are_events: bool
    with_fields: bool
    compression: Compression
    max_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            micros = columns["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
            fields = self._fields(columns, micros) if self.with_fields else [None] * batch.num_rows
            places = (columns[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
            for topic, partition, offset, value, at, record in zip(*places, micros, fields, strict=True):
                seq = record_seq(partition_number(numbers[topic], partition), offset)
                key = f"{topic}/{partition}/{offset}"
                yield Record(self._payload(seq, key, value, record), at or 0)

    def _payload(self, seq: int, key: str, value: bytes | None, record: dict[str, Any] | None) -> Payload:
        if value is not None:
            return record_payload(
                seq, key, value, record=record, compression=self.compression, max_bytes=self.max_bytes
            )
        if self.tombstones_are_events:
            return Payload(seq, key, None, events=((0, ({}, b"{}")),), record=record)
        reason = Reason(ReasonCode.TOMBSTONE, "", "the record has no value")
        return unreadable(seq, key, b"", reason, record=record)

    @staticmethod
    def _fields(columns: Mapping[str, pa.Array], micros: list[int | None]) -> list[dict[str, Any]]:
        names = ("topic", "partition", "offset", "key", "headers", "value")
        rows = zip(*(columns[name].to_pylist() for name in names), micros, strict=True)
        return [
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "key": text_of(key),
                "headers": {header["key"]: text_of(header["value"]) for header in headers or ()},
                "tombstone": value is None,
                "timestamp": None if at is None else micros_as_iso(at),
            }
            for topic, partition, offset, key, headers, value, at in rows
        ]


def partition_number(topic: int, partition: int) -> int:
    """The number of a partition among those of all topics.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED.
    """
    if partition >= 1 << PARTITION_BITS:
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Partition {partition} has no place in a 64-bit `_seq`.",
            hint=f"Topics have at most {1 << PARTITION_BITS} partitions here.",
        )
    return topic << PARTITION_BITS | partition
