"""Reads records of Kinesis again: shares of shards that batches read, between the positions that the ledger has.

A batch's offset names where it starts in every shard, and how many rows of the shard came before; where it ends, the
next batch's offset says, or the state of the query. So a share is read whole and counted: one that has lost a record
would give the others the wrong ordinals.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.events.source_fields import reads_record_fields
from deltaworks.sources.base import PayloadReader
from deltaworks.sources.kinesis.archive_rows import kinesis_columns
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.positions import Offset, Position, ShareEnd
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages
from deltaworks.sources.kinesis.shards import shard_number
from deltaworks.sources.kinesis.source import COLUMNS, KinesisReader
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.kinesis.stream_api import MAX_PAGE_RECORDS, ShardNotFound
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, BatchOffsets, RecordRange, RetainedRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.records import KinesisSourceSpec
from deltaworks.specs.storage import AwsSpec, resolved_variables, set_missing_variables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
#: Empty pages that are looked through for the oldest record of a shard.
_MAX_PAGES = 50
_NO_LIMIT = 1 << 62


class KinesisRecordSource:
    """The stream of one pipeline. See `RecordSource`."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, KinesisSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._environment = catalog.environment
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._with_fields = reads_record_fields(spec)

    @property
    def reader(self) -> PayloadReader:
        """See RecordSource."""
        return KinesisReader.for_source(self._source, with_fields=self._with_fields)

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """See RecordSource."""
        ranges = []
        for batch, following in pairwise([*batches, None]):
            if batch is None:
                continue
            offset = Offset.from_json(batch.end)
            after = None if following is None else Offset.from_json(following.end)
            if after is not None and (after.run, after.batch) != (offset.run, offset.batch + 1):
                after = None
            for shard, start in offset.shards.items():
                end = self._end(batch, offset, after, shard)
                if end is None or end.rows > start.rows:
                    ranges.append(self._range(batch, shard, start, end))
        return ranges

    def _end(self, batch: BatchOffsets, offset: Offset, after: Offset | None, shard: str) -> Position | None:
        """Where the batch ends in a shard; None where that is the shard's own end and nobody has it on record."""
        if after is not None and shard in after.shards:
            return after.shards[shard]
        recorded: ShareEnd | None = self._state(batch.generation).share_end(offset.run, offset.batch, shard)
        if recorded is None and (after is None or shard not in after.done):
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger does not say where batch {batch.batch_id} ended in {shard}, nor does the query's state.",
                hint="Land a batch more, whose offset says so; or restore the state's objects from their versions.",
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
        """See RecordSource: `stream/shard/first-last` by sequence numbers, either of which may be left out; shares that
        have one of these records are read whole."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[2]:
            return None
        first, separator, last = parts[2].partition("-")
        if any(bound and not bound.isdecimal() for bound in (first, last)):
            return None
        low, high = int(first or 0), int(last) if last else (None if separator else int(first))
        within = (one for one in ranges if (one.stream, one.partition) == (parts[0], parts[1]))
        return [one for one in within if _overlaps(one.details, low, high)]

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """See RecordSource. The record behind which a share begins is the only proof that nothing of it is gone."""
        stream = KinesisStream(self._environment.messaging, name=self._source.stream)
        query = self._state(self._home.generations.current()).query()
        if query is not None and stream.summary().created != query.stream_created:
            return [NOTHING_RETAINED for _ in ranges]
        oldest = {shard: oldest_sequence_number(stream, shard) for shard in {one.partition for one in ranges}}
        return [self.retained_range(one, oldest[one.partition]) for one in ranges]

    @staticmethod
    def retained_range(one: RecordRange, oldest: int | None) -> RetainedRange:
        """What of a share a shard has whose oldest record has this sequence number; None where it has none."""
        after, through = one.details["start"].get("after"), one.details["through"]
        if oldest is None or (through is not None and int(through) < oldest):
            return NOTHING_RETAINED
        if after is not None and oldest <= int(after):
            return RetainedRange(one.first, one.first)
        return RetainedRange(LAST_ORDINAL + 1, one.first)

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """See RecordSource: whole shares, each read by one task; one that is not whole any more gives no row."""
        aws, name = self._environment.messaging, self._source.stream
        declared, variables = aws.model_dump_json(), resolved_variables(aws)
        shares = [(one.partition, json.dumps(dict(one.details))) for one in ranges]

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            set_missing_variables(variables)
            stream = KinesisStream(AwsSpec.model_validate_json(declared), name=name)
            for batch in batches:
                for share in batch.to_pylist():
                    yield from reread_share(stream, share["shard"], json.loads(share["place"]), stream_name=name)

        frame = spark.createDataFrame(shares, "shard string, place string").repartition(min(len(shares), 32))
        return frame.mapInArrow(read, _ROW_TYPES).select(*COLUMNS)

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """See RecordSource."""
        return kinesis_columns(rows)


_ROW_TYPES = (
    "stream_name string, shard_id string, sequence_number string, sub_sequence_number long, partition_key string, "
    "data binary, approximate_arrival_timestamp timestamp, ordinal long"
)


def _overlaps(details: Mapping[str, Any], low: int, high: int | None) -> bool:
    """Whether a share may have a record of these sequence numbers, both included."""
    start, through = int(details["start"].get("after") or -1), details["through"]
    return (high is None or start < high) and (through is None or int(through) >= low)


def oldest_sequence_number(stream: KinesisStream, shard_id: str) -> int | None:
    """The sequence number of the oldest record of a shard; None where it has none."""
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


def reread_share(
    stream: KinesisStream, shard: str, details: Mapping[str, Any], *, stream_name: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a share, or none where it has not as many as before."""
    start, through, expected = Position.from_json(details["start"]), details["through"], details["rows"]
    rows = Rows(should_deaggregate=True)
    try:
        pages = PolledPages(stream, shard, start)
        while not _append_page(rows, pages, through):
            pass
    except ShardNotFound:
        log.warning("%s is not there any more", shard)
        return
    if expected is not None and len(rows) != expected:
        log.warning("%s gives %d rows of %d", shard, len(rows), expected)
        return
    yield from rows.batches(stream=stream_name, shard_id=shard, first_ordinal=start.rows)


def _append_page(rows: Rows, pages: PolledPages, through: str | None) -> bool:
    """Take a page; whether it was the last one."""
    page = pages.next_page(MAX_PAGE_RECORDS)
    last = None if through is None else int(through)
    count = len(page)
    if last is not None:
        count = next((at for at, number in enumerate(page.sequence_numbers) if int(number) > last), len(page))
    rows.append(page.slice(0, count), max_rows=_NO_LIMIT, max_bytes=_NO_LIMIT)
    beyond = count < len(page) or (count > 0 and int(page.sequence_numbers[count - 1]) == last)
    return beyond or pages.is_ended or not page.behind_ms
