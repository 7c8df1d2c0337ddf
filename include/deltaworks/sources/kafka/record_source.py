"""Re-reads the Kafka records of earlier batches, by the offsets in the ledger, with Spark's connector.

A compacted topic may have lost any record, so no record is certainly retained. A recreated topic has other records at
these offsets, so none is retained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.events.source_fields import reads_record_fields
from deltaworks.sources.base import PayloadReader, initial_offset
from deltaworks.sources.kafka.brokers import KafkaBrokers
from deltaworks.sources.kafka.offsets import PARTITION_BITS, TopicIds, kafka_columns
from deltaworks.sources.kafka.source import KafkaReader, client_settings
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, BatchOffsets, RecordRange, RetainedRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.records import KafkaSourceSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("topic", "partition", "offset", "timestamp", "value", "key", "headers")
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
        return spark.read.format("kafka").options(**options).load().select(*_COLUMNS)

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Converts rows of the archive table to the columns of Spark's Kafka connector."""
        return kafka_columns(rows)
