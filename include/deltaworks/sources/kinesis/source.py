"""A Kinesis stream as a source: each record is a payload, read in a task, and can be re-read; and its archive.

Tasks agree on a batch's end in each shard through objects stored with the pipeline's checkpoints. A record's `_seq`
consists of its shard's number and its ordinal in the shard.

Records of earlier batches are re-read by the shard ranges that the ledger records. A batch's offset contains its start
position in every shard and the number of rows before it. Its end is in the next batch's offset or in the query's state.
A range is read completely and counted, because a missing record would shift the ordinals of the others. Records that
the stream has forgotten are read from the archive table, whose rows are converted back to the reader's columns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Payload
from deltaworks.events.source_fields import reads_record_fields
from deltaworks.sources.base import CachedLookup, LossCheck, OffsetRange, PayloadReader, RecordSlice
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.options import render_options
from deltaworks.sources.kinesis.positions import Gap, Offset, Position, ShardRangeEnd
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages
from deltaworks.sources.kinesis.shards import row_seq, shard_number
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.kinesis.stream_api import MAX_PAGE_RECORDS, ShardNotFound
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, BatchOffsets, RecordRange, RetainedRange
from deltaworks.sources.records import ORDINAL_BITS, Record, lost_records_payload, record_payload, record_time
from deltaworks.sources.spark_formats import data_sources as data_source
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import Compression, KinesisSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec, resolved_variables, set_missing_variables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def kinesis_archive_columns(stream: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the archive table's columns for an Arrow batch of records.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, KINESIS_SHARD_UNNUMBERED.
    """
    shards, ordinals = batch.column("shardId"), batch.column("ordinal")
    seqs = [row_seq(shard, ordinal) for shard, ordinal in zip(shards.to_pylist(), ordinals.to_pylist(), strict=True)]
    return {
        "stream": pa.repeat(pa.scalar(stream), batch.num_rows),
        "partition": shards,
        "position": batch.column("sequenceNumber"),
        "arrived_at_us": batch.column("approximateArrivalTimestamp").cast(pa.int64()),
        "_seq": pa.array(seqs, pa.int64()),
        "record_key": batch.column("partitionKey").cast(pa.binary()),
        "value": batch.column("data"),
    }


def kinesis_columns(rows: DataFrame) -> DataFrame:
    """Converts rows of the archive table to the columns that the Kinesis reader returns."""
    from pyspark.sql import functions as F

    return rows.select(
        F.col("partition").alias("shardId"),
        F.col("position").alias("sequenceNumber"),
        F.col("record_key").cast("string").alias("partitionKey"),
        F.col("value").alias("data"),
        F.timestamp_micros("arrived_at_us").alias("approximateArrivalTimestamp"),
        F.col("_seq").bitwiseAND(F.lit((1 << ORDINAL_BITS) - 1)).alias("ordinal"),
    )


COLUMNS = ("shardId", "sequenceNumber", "partitionKey", "data", "approximateArrivalTimestamp", "ordinal")


class KinesisSource:
    """The stream that a pipeline declares, accessed with the environment's messaging settings."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KinesisSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._environment = catalog.environment
        self._pipeline = spec.pipeline
        self._with_fields = reads_record_fields(spec)
        self._has_archive = spec.archive is not None
        self._retention = CachedLookup(self._retention_seconds, description=f"the retention of {spec.source.stream}")

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Returns a streaming DataFrame of all shards' records, parents before their children; see
        `sources.kinesis`."""
        source = self._source
        options = render_options(
            self._environment.messaging,
            self._state_storage(),
            stream=source.stream,
            initialPosition=source.initial_position,
            maxRecords=source.max_records_per_batch,
            maxBytes=source.max_bytes_per_batch,
            allowDataLoss=str(source.allow_data_loss).lower(),
            startOffset=None if start is None else json.dumps(start),
            consumerMode=source.consumer_mode,
            consumerName=source.consumer_name_for(self._pipeline),
        )
        data_source.register(spark)
        return spark.readStream.format(data_source.FORMAT).options(**options).load()

    def _state_storage(self) -> StorageSpec:
        lake = self._environment.lake
        generation = PipelineHome.open(lake, self._pipeline).generations.current()
        folder = paths.kinesis_state(self._pipeline, generation)
        return lake.model_copy(update={"root": lake.uri(folder)})

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> RecordSlice:
        """Returns the batch's records. They are read in tasks only."""
        reader = KinesisReader.for_source(self._source, with_fields=self._with_fields)

        def lost_payloads(ranges: Sequence[Any]) -> list[Payload]:
            _, end = offsets()
            state = QueryState(open_objects(self._state_storage()))
            return [lost_range_payload(self._source.stream, gap) for gap in state.gaps(Offset.from_json(end))]

        losses = LossCheck(lost_payloads=lost_payloads) if self._source.allow_data_loss else LossCheck()
        to_archive = partial(kinesis_archive_columns, self._source.stream) if self._has_archive else None
        return RecordSlice(batch.select(*COLUMNS), reader, losses, to_archive=to_archive)

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the age of the oldest unread record over all shards. Kinesis does not report the number of unread
        records.
        """
        latest = progress.get("latestOffset") if progress else None
        report = json.loads(latest) if isinstance(latest, str) else latest
        behind_ms = max((report or {}).get("millis_behind_latest", {}).values(), default=0)
        oldest_at = (
            (utc_now() - timedelta(milliseconds=behind_ms)).isoformat(timespec="milliseconds") if behind_ms else None
        )
        return {"oldest_pending_at": oldest_at, "retention_seconds": self._retention.read()}

    def _retention_seconds(self) -> float:
        summary = KinesisStream(self._environment.messaging, name=self._source.stream).summary()
        return summary.retention.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisReader:
    """Converts Kinesis records into payloads inside a task."""

    stream: str
    with_fields: bool
    compression: Compression
    max_bytes: int

    @classmethod
    def for_source(cls, source: KinesisSourceSpec, *, with_fields: bool) -> Self:
        """Creates the reader for a pipeline's source."""
        return cls(
            stream=source.stream,
            with_fields=with_fields,
            compression=source.compression,
            max_bytes=source.max_event_bytes,
        )

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            arrivals_us = columns["approximateArrivalTimestamp"].cast(pa.int64()).to_pylist()
            names = ("shardId", "ordinal", "sequenceNumber", "partitionKey", "data")
            for shard, ordinal, number, key, data, oldest_at in zip(
                *(columns[name].to_pylist() for name in names), arrivals_us, strict=True
            ):
                record = None
                if self.with_fields:
                    fields = {"stream": self.stream, "shard": shard, "sequence_number": number, "partition_key": key}
                    record = {**fields, "timestamp": record_time(oldest_at)}
                payload = record_payload(
                    row_seq(shard, ordinal),
                    f"{self.stream}/{shard}/{number}",
                    data,
                    record=record,
                    compression=self.compression,
                    max_bytes=self.max_bytes,
                    arrived_at_us=oldest_at,
                )
                yield Record(payload, oldest_at)


def lost_range_payload(stream: str, gap: Gap) -> Payload:
    """Returns the payload for a gap, which becomes a row in quarantine. The number of lost records is unknown."""
    begin = f"behind {gap.after}" if gap.after else "from the beginning"
    end = f"before {gap.first}" if gap.first else "to the end"
    return lost_records_payload(
        # Sequence numbers do not fit into `_seq`, and lost records have no ordinal.
        row_seq(gap.shard_id, 0),
        f"{stream}/{gap.shard_id}/{gap.after or ''}-{gap.first or ''}",
        f"records of {gap.shard_id} {begin} {end} may have expired unread",
        record={"stream": stream} | gap.to_json(),
    )


log = logging.getLogger(__name__)
#: Maximum number of empty pages read in search of a shard's oldest record.
_MAX_PAGES = 50
_NO_LIMIT = 1 << 62


class KinesisRecordSource:
    """Re-reads records of the stream of one pipeline."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KinesisSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._environment = catalog.environment
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._with_fields = reads_record_fields(spec)

    @property
    def reader(self) -> PayloadReader:
        """Returns the reader that converts Kinesis rows into payloads."""
        return KinesisReader.for_source(self._source, with_fields=self._with_fields)

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """Returns the shard ranges that these batches read, in order; see `RecordSource.ranges`."""
        ranges = []
        for batch, next_batch in pairwise([*batches, None]):
            if batch is None:
                continue
            offset = Offset.from_json(batch.end)
            after = None if next_batch is None else Offset.from_json(next_batch.end)
            if after is not None and (after.run, after.batch) != (offset.run, offset.batch + 1):
                after = None
            for shard, start in offset.shards.items():
                end = self._end(batch, offset, after, shard)
                if end is None or end.rows > start.rows:
                    ranges.append(self._range(batch, shard, start, end))
        return ranges

    def _end(self, batch: BatchOffsets, offset: Offset, after: Offset | None, shard: str) -> Position | None:
        """Returns the batch's end position in a shard; None if the batch read the shard to its end and no state records
        that end.
        """
        if after is not None and shard in after.shards:
            return after.shards[shard]
        recorded: ShardRangeEnd | None = self._state(batch.generation).shard_range_end(offset.run, offset.batch, shard)
        if recorded is None and (after is None or shard not in after.finished):
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"Neither the ledger nor the query's state records where batch {batch.batch_id} ended in {shard}.",
                hint=(
                    "Run one more batch, whose offset records it, or restore the state's objects from their versions."
                ),
            )
        return None if recorded is None else recorded.end

    def _state(self, generation: int) -> QueryState:
        lake = self._environment.lake
        folder = paths.kinesis_state(self._home.pipeline, generation)
        return QueryState(open_objects(lake.model_copy(update={"root": lake.uri(folder)})))

    def _range(self, batch: BatchOffsets, shard: str, start: Position, end: Position | None) -> RecordRange:
        return RecordRange(
            stream=self._source.stream,
            partition=shard,
            number=shard_number(shard),
            first=start.rows,
            last=LAST_ORDINAL if end is None else end.rows - 1,
            batch_id=batch.batch_id,
            is_gapless=end is not None,
            details={
                "start": start.to_json(),
                "through": None if end is None else end.after,
                "rows": None if end is None else end.rows - start.rows,
            },
        )

    def select(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange] | None:
        """Returns the shard ranges that `stream/shard/first-last` selects, by sequence numbers; either end may be
        omitted.

        A range with at least one selected record is returned completely. Returns None if the text has another form.
        """
        parts = text.split("/")
        if len(parts) != 3 or not parts[2]:
            return None
        first, separator, last = parts[2].partition("-")
        if any(bound and not bound.isdecimal() for bound in (first, last)):
            return None
        first_number, last_number = int(first or 0), int(last) if last else (None if separator else int(first))
        candidates = (range_ for range_ in ranges if (range_.stream, range_.partition) == (parts[0], parts[1]))
        return [range_ for range_ in candidates if _overlaps(range_.details, first_number, last_number)]

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """Returns how much of each shard range the stream still retains; see `RecordSource.retained`.

        A range counts as certainly complete only if the record before it still exists.
        """
        stream = KinesisStream(self._environment.messaging, name=self._source.stream)
        query = self._state(self._home.generations.current()).query()
        if query is not None and stream.summary().created != query.stream_created:
            return [NOTHING_RETAINED for _ in ranges]
        oldest = {shard: oldest_sequence_number(stream, shard) for shard in {range_.partition for range_ in ranges}}
        return [self.retained_range(range_, oldest[range_.partition]) for range_ in ranges]

    @staticmethod
    def retained_range(range_: RecordRange, oldest: int | None) -> RetainedRange:
        """Returns the retained part of a shard range. `oldest` is the sequence number of the shard's oldest record;
        None if the shard has none.
        """
        after, last_number = range_.details["start"].get("after"), range_.details["through"]
        if oldest is None or (last_number is not None and int(last_number) < oldest):
            return NOTHING_RETAINED
        if after is not None and oldest <= int(after):
            return RetainedRange(range_.first, range_.first)
        return RetainedRange(LAST_ORDINAL + 1, range_.first)

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """Returns the records of complete shard ranges, each read by one task. An incomplete range yields no rows."""
        aws, name = self._environment.messaging, self._source.stream
        declared, variables = aws.model_dump_json(), resolved_variables(aws)
        shard_ranges = [(range_.partition, json.dumps(dict(range_.details))) for range_ in ranges]

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            set_missing_variables(variables)
            stream = KinesisStream(AwsSpec.model_validate_json(declared), name=name)
            for batch in batches:
                for shard_range in batch.to_pylist():
                    yield from reread_shard_range(
                        stream, shard_range["shard"], json.loads(shard_range["details"]), stream_name=name
                    )

        frame = spark.createDataFrame(shard_ranges, "shard string, details string").repartition(
            min(len(shard_ranges), 32)
        )
        return frame.mapInArrow(read, _ROW_TYPES).select(*COLUMNS)

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Converts rows of the archive table to the columns of `frame`."""
        return kinesis_columns(rows)


_ROW_TYPES = (
    "stream string, shardId string, sequenceNumber string, subSequenceNumber long, partitionKey string, "
    "data binary, approximateArrivalTimestamp timestamp, ordinal long"
)


def _overlaps(details: Mapping[str, Any], first_number: int, last_number: int | None) -> bool:
    """Returns whether a shard range may have a record between these sequence numbers, both inclusive."""
    start, through = int(details["start"].get("after") or -1), details["through"]
    return (last_number is None or start < last_number) and (through is None or int(through) >= first_number)


def oldest_sequence_number(stream: KinesisStream, shard_id: str) -> int | None:
    """Returns the sequence number of a shard's oldest record; None without records."""
    try:
        pages = PolledPages(stream, shard_id, Position())
    except ShardNotFound:
        return None
    for _ in range(_MAX_PAGES):
        page = pages.next_page(1)
        if len(page):
            return int(page.sequence_numbers[0])
        if pages.is_ended or not page.behind_ms:
            return None
    return None


def reread_shard_range(
    stream: KinesisStream, shard: str, details: Mapping[str, Any], *, stream_name: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a shard range. Yields none if their number differs from the first read."""
    start, last_number, expected_rows = Position.from_json(details["start"]), details["through"], details["rows"]
    rows = Rows(should_deaggregate=True)
    try:
        pages = PolledPages(stream, shard, start)
        while not _append_page(rows, pages, last_number):
            pass
    except ShardNotFound:
        log.warning("Shard %s no longer exists", shard)
        return
    if expected_rows is not None and len(rows) != expected_rows:
        log.warning("Shard %s returned %d of %d rows", shard, len(rows), expected_rows)
        return
    yield from rows.batches(stream=stream_name, shard_id=shard, first_ordinal=start.rows)


def _append_page(rows: Rows, pages: PolledPages, last_number: str | None) -> bool:
    """Reads the next page into `rows`; returns whether it was the last page."""
    page = pages.next_page(MAX_PAGE_RECORDS)
    last = None if last_number is None else int(last_number)
    count = len(page)
    if last is not None:
        count = next((at for at, number in enumerate(page.sequence_numbers) if int(number) > last), len(page))
    rows.append(page.slice(0, count), max_rows=_NO_LIMIT, max_bytes=_NO_LIMIT)
    is_past_end = count < len(page) or (count > 0 and int(page.sequence_numbers[count - 1]) == last)
    return is_past_end or pages.is_ended or not page.behind_ms
