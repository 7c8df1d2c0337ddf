"""Kafka topics as a source, read with Spark's connector: each record is a payload, read in a task.

Reads committed records only; records of aborted transactions are skipped. A record's `_seq` consists of the topic's
index in the declaration, the partition and the offset.

Records of earlier batches are re-read by the offsets in the ledger. A compacted topic may have lost any record, so no
record is certainly retained. A recreated topic has other records at these offsets, so none is retained.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from deltaworks.control.clock import micros_to_iso
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.events.chunks import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.events.source_fields import reads_record_fields
from deltaworks.sources.base import CachedLookup, LossCheck, OffsetRange, PayloadReader, RecordSlice, initial_offset
from deltaworks.sources.kafka.brokers import KafkaBrokers, client_properties
from deltaworks.sources.kafka.offsets import (
    PARTITION_BITS,
    ReadOffsets,
    TopicIds,
    TopicPartition,
    count_offsets_between,
    kafka_archive_columns,
    kafka_columns,
    lost_records,
    partition_seq,
    unread_offsets,
)
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, BatchOffsets, RecordRange, RetainedRange
from deltaworks.sources.records import Record, decode_text, record_payload, record_time, unreadable_payload
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import Compression, KafkaSourceSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OLDEST_CHECK_SECONDS = 60.0
#: In topics without retention, how far back the oldest unread record is searched.
_MAX_LOOKBACK_SECONDS = 30 * 86_400.0
_COLUMNS = ("topic", "partition", "offset", "timestamp", "value")


class KafkaSource:
    """Reads the Kafka topics that a pipeline declares as its source."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KafkaSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._pipeline = spec.pipeline
        self._with_fields = reads_record_fields(spec)
        self._has_archive = spec.archive is not None
        self._tasks = spec.stream.tasks_per_batch
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._topics = TopicIds(self._home)
        self._spark: SparkSession | None = None
        self._unread: dict[TopicPartition, int] = {}
        self._retention = CachedLookup(self._retention_seconds, description="the retention of the topics")
        self._oldest = CachedLookup(
            self._oldest_unread_ms,
            description="the time of the oldest unread record",
            interval_seconds=_OLDEST_CHECK_SECONDS,
        )

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Returns committed records, at most `max_records_per_batch` per batch.

        Raises:
            ConfigError: REFERENCE_UNRESOLVED, SOURCE_CERTIFICATE_MISSING.
            ContractError: KAFKA_TOPIC_REPLACED.
        """
        self._spark = spark
        source, client = self._source, self._client_settings()
        options = {
            "subscribe": ",".join(source.topics),
            "startingOffsets": source.starting_offsets if start is None else json.dumps(start),
            "maxOffsetsPerTrigger": str(source.max_records_per_batch),
            "minPartitions": str(self._tasks),
            "failOnDataLoss": str(not source.allow_data_loss).lower(),
            "includeHeaders": str(self._with_fields or self._has_archive).lower(),
            "kafka.isolation.level": "read_committed",
            **{f"kafka.{name}": value for name, value in client.items()},
        }
        self._topics.check(KafkaBrokers(client).topic_ids(spark, source.topics))
        return spark.readStream.format("kafka").options(**options).load()

    def _client_settings(self) -> dict[str, str]:
        return client_settings(self._source)

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> RecordSlice:
        """Returns the batch's records. They are read in tasks only.

        Raises:
            ContractError: KAFKA_TOPIC_REPLACED, before the batch is read.
        """
        source, spark = self._source, batch.sparkSession
        brokers = KafkaBrokers(self._client_settings())
        self._topics.check(brokers.topic_ids(spark, source.topics))
        columns = [*_COLUMNS, *(("key", "headers") if self._with_fields or self._has_archive else ())]
        reader = KafkaReader.for_source(source, with_fields=self._with_fields)

        def lost_payloads(ranges: Sequence[Any]) -> list[Payload]:
            start, end = offsets()
            earliest = brokers.earliest_offsets(spark, source.topics)
            return lost_records(source.topics, ranges, start=start, end=end, earliest=earliest)

        # If losses are not allowed, Spark ends the query instead.
        losses = (
            LossCheck(read_ranges=ReadOffsets, lost_payloads=lost_payloads) if source.allow_data_loss else LossCheck()
        )
        to_archive = partial(kafka_archive_columns, source.topics) if self._has_archive else None
        return RecordSlice(batch.select(*columns), reader, losses, to_archive=to_archive)

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the number of unread records, the time of the oldest one, and the retention, as of the query's last
        progress.
        """
        if not progress or not progress.get("latestOffset"):
            return {}
        read, latest = _parse_offsets(progress["endOffset"]), _parse_offsets(progress["latestOffset"])
        self._unread = unread_offsets(read, latest)
        retention = self._retention.read()
        oldest = self._oldest.read() if self._unread else None
        return {
            "backlog_records": count_offsets_between(read, latest),
            "oldest_pending_at": None if oldest is None else micros_to_iso(oldest * 1000),
            "retention_seconds": retention,
        }

    def _retention_seconds(self) -> float | None:
        return (
            None
            if self._spark is None
            else self._monitoring_brokers().retention_seconds(self._spark, self._source.topics)
        )

    def _oldest_unread_ms(self) -> int | None:
        if self._spark is None:
            return None
        retention_ms, now_ms = 1000 * (self._retention.read() or _MAX_LOOKBACK_SECONDS), int(1000 * time.time())
        return self._monitoring_brokers().oldest_unread_ms(
            self._spark,
            self._unread,
            earliest_ms=max(0, int(now_ms - retention_ms)),
            now_ms=now_ms,
            precision_ms=int(retention_ms / 1000),
        )

    def _monitoring_brokers(self) -> KafkaBrokers:
        """Returns brokers with short timeouts: monitoring must not delay a stop of the stream."""
        return KafkaBrokers(self._client_settings() | {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"})


def client_settings(source: KafkaSourceSpec) -> dict[str, str]:
    """Returns the properties of a Java client for the source's brokers. They contain secrets.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED, SOURCE_CERTIFICATE_MISSING.
    """
    servers = {"bootstrap.servers": resolve_text(source.bootstrap_servers)}
    return servers | (client_properties(source.security) if source.security else {})


def _parse_offsets(reported: Any) -> dict[str, dict[str, int]]:
    offsets = json.loads(reported) if isinstance(reported, str) else reported
    return offsets if isinstance(offsets, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReader:
    """Converts Kafka records into payloads inside a task."""

    topics: tuple[str, ...]
    has_tombstone_events: bool
    with_fields: bool
    compression: Compression
    max_bytes: int

    @classmethod
    def for_source(cls, source: KafkaSourceSpec, *, with_fields: bool) -> Self:
        """Creates the reader for a pipeline's source."""
        return cls(
            topics=source.topics,
            has_tombstone_events=source.tombstones == "event",
            with_fields=with_fields,
            compression=source.compression,
            max_bytes=source.max_event_bytes,
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            arrivals_us = columns["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
            fields = self._fields(columns, arrivals_us) if self.with_fields else [None] * batch.num_rows
            values = (columns[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
            for topic, partition, offset, value, arrived_us, record in zip(*values, arrivals_us, fields, strict=True):
                seq = partition_seq(numbers[topic], partition, offset)
                key = f"{topic}/{partition}/{offset}"
                # A client that sends no timestamp stores -1.
                arrived = None if arrived_us is None or arrived_us < 0 else arrived_us
                yield Record(self._payload(seq, key, value, record, arrived), arrived_us or 0)

    def _payload(
        self, seq: int, key: str, value: bytes | None, record: dict[str, Any] | None, arrived: int | None
    ) -> Payload:
        if value is not None:
            return record_payload(
                seq,
                key,
                value,
                record=record,
                compression=self.compression,
                max_bytes=self.max_bytes,
                arrived_at_us=arrived,
            )
        if self.has_tombstone_events:
            return Payload(seq, key, None, events=((0, ({}, b"{}")),), record=record, arrived_at_us=arrived)
        reason = Reason(ReasonCode.TOMBSTONE, "", "the record has no value")
        return unreadable_payload(seq, key, b"", reason, record=record, arrived_at_us=arrived)

    @staticmethod
    def _fields(columns: Mapping[str, pa.Array], arrivals_us: list[int | None]) -> list[dict[str, Any]]:
        names = ("topic", "partition", "offset", "key", "headers", "value")
        rows = zip(*(columns[name].to_pylist() for name in names), arrivals_us, strict=True)
        return [
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "key": decode_text(key),
                "headers": {header["key"]: decode_text(header["value"]) for header in headers or ()},
                "tombstone": value is None,
                "timestamp": None if arrived_us is None else record_time(arrived_us),
            }
            for topic, partition, offset, key, headers, value, arrived_us in rows
        ]


_RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "value", "key", "headers")
#: Conditions under which a topic retains none of the records that were read.
_TOPIC_MISSING_CONDITIONS = ("KAFKA_TOPIC_REPLACED", "KAFKA_TOPIC_MISSING")


class KafkaRecordSource:
    """Re-reads records of the topics of one pipeline."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KafkaSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._tasks = spec.stream.tasks_per_batch
        self._with_fields = reads_record_fields(spec)

    @property
    def reader(self) -> PayloadReader:
        """Returns the reader that converts Kafka records into payloads."""
        return KafkaReader.for_source(self._source, with_fields=self._with_fields)

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """Returns the offset ranges that these batches read, in order. Due to transactions and compaction they may have
        gaps.
        """
        return [range_ for batch in batches for range_ in self._batch_ranges(batch)]

    def _batch_ranges(self, batch: BatchOffsets) -> list[RecordRange]:
        start = batch.start if batch.start is not None else self._query_start(batch)
        ranges = []
        for topic, partitions in batch.end.items():
            if topic not in self._source.topics:
                continue
            topic_index = self._source.topics.index(topic)
            for partition, end in partitions.items():
                first = (start.get(topic) or {}).get(partition, 0)
                if first < end:
                    ranges.append(
                        RecordRange(
                            stream=topic,
                            partition=partition,
                            number=topic_index << PARTITION_BITS | int(partition),
                            first=first,
                            last=end - 1,
                            batch_id=batch.batch_id,
                        )
                    )
        return ranges

    def _query_start(self, batch: BatchOffsets) -> dict[str, dict[str, int]]:
        """Returns the offsets at which the query began. Needed if the ledger does not record the start of the batch."""
        recorded = initial_offset(self._home, self._home.generations.effective())
        if not recorded and self._source.starting_offsets == "latest":
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger does not record the start of batch {batch.batch_id}.",
                hint="Select later batches.",
            )
        return recorded

    def select(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange] | None:
        """Returns the parts of ranges that `topic/partition/first-last` selects; either end may be omitted. Returns
        None if the text has another form.
        """
        parts = text.split("/")
        if len(parts) != 3 or not parts[1].isdecimal():
            return None
        first, separator, last = parts[2].partition("-")
        if any(bound and not bound.isdecimal() for bound in (first, last)) or not parts[2]:
            return None
        first_offset = int(first or 0)
        last_offset = int(last) if last else (LAST_ORDINAL if separator else first_offset)
        candidates = (range_ for range_ in ranges if (range_.stream, range_.partition) == (parts[0], parts[1]))
        return [part for range_ in candidates if (part := range_.clip(first_offset, last_offset)) is not None]

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """Returns which part of each range the topic still retains; see `RecordSource.retained`."""
        by_topic: dict[str, dict[str, RetainedRange]] = {
            topic: self._retained_by_partition(spark, topic) for topic in self._source.topics
        }
        return [by_topic.get(range_.stream, {}).get(range_.partition, NOTHING_RETAINED) for range_ in ranges]

    def _retained_by_partition(self, spark: SparkSession, topic: str) -> dict[str, RetainedRange]:
        brokers = KafkaBrokers(client_settings(self._source))
        try:
            TopicIds(self._home).check(brokers.topic_ids(spark, [topic]))
        except DeltaworksError as error:
            if error.condition in _TOPIC_MISSING_CONDITIONS:
                return {}
            raise
        compacted = brokers.has_compaction(spark, [topic])
        return {
            str(partition): RetainedRange(LAST_ORDINAL + 1 if compacted else earliest, earliest)
            for (_, partition), earliest in brokers.earliest_offsets(spark, [topic]).items()
        }

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """Returns all records of each partition from its first to its last range, so records between the ranges too."""
        start: dict[str, dict[str, int]] = {}
        end: dict[str, dict[str, int]] = {}
        for range_ in ranges:
            first, last = start.setdefault(range_.stream, {}), end.setdefault(range_.stream, {})
            first[range_.partition] = min(range_.first, first.get(range_.partition, range_.first))
            last[range_.partition] = max(range_.last + 1, last.get(range_.partition, 0))
        options = {
            "assign": json.dumps({topic: sorted(map(int, partitions)) for topic, partitions in start.items()}),
            "startingOffsets": json.dumps(start),
            "endingOffsets": json.dumps(end),
            "minPartitions": str(self._tasks),
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            **{f"kafka.{name}": value for name, value in client_settings(self._source).items()},
        }
        return spark.read.format("kafka").options(**options).load().select(*_RECORD_COLUMNS)

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Converts rows of the archive table to the columns of Spark's Kafka connector."""
        return kafka_columns(rows)
