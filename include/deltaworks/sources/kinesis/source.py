"""A Kinesis stream as a source: each record is a payload, read in a task.

Tasks agree on a batch's end in each shard through objects stored with the pipeline's checkpoints. A record's `_seq`
consists of its shard's number and its ordinal in the shard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import micros_to_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.events.chunks import Payload
from deltaworks.events.source_fields import reads_record_fields
from deltaworks.sources.base import CachedLookup, LossCheck, OffsetRange, RecordSlice
from deltaworks.sources.kinesis.archive_rows import kinesis_archive_columns
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.options import render_options
from deltaworks.sources.kinesis.positions import Gap, Offset
from deltaworks.sources.kinesis.shards import row_seq
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.records import Record, lost_records_payload, record_payload
from deltaworks.sources.spark_formats import kinesis as data_source
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.records import Compression, KinesisSourceSpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("shard_id", "sequence_number", "partition_key", "data", "approximate_arrival_timestamp", "ordinal")


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
            arrivals_us = columns["approximate_arrival_timestamp"].cast(pa.int64()).to_pylist()
            names = ("shard_id", "ordinal", "sequence_number", "partition_key", "data")
            for shard, ordinal, number, key, data, oldest_at in zip(
                *(columns[name].to_pylist() for name in names), arrivals_us, strict=True
            ):
                record = None
                if self.with_fields:
                    fields = {"stream": self.stream, "shard": shard, "sequence_number": number, "partition_key": key}
                    record = {**fields, "timestamp": micros_to_iso(oldest_at)}
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
