"""Objects as a source: slices of a relay's file event log. Tasks open the objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.sources.base import CachedLookup, ObjectSlice, OffsetRange
from deltaworks.sources.objects.file_event_log import FileEventLog, event_time_us
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.bucket import bucket_retention_seconds
from deltaworks.sources.objects.slices import MAX_BATCH_FILES, FileEventPlanner, SliceLimits
from deltaworks.sources.record_source import planned_frame
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import require_object_source
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class FileSource:
    """Reads the objects of a bucket and prefix, as the relay's file event log reports them."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        self._environment = catalog.environment
        self._lake = Lake(catalog.environment.lake)
        self._source = require_object_source(
            spec.source, pipeline=spec.pipeline, unsupported="its stream reads no file events"
        )
        #: A planner of its own, because another thread uses it.
        self._log = FileEventLog(self._lake, self._source.relay)
        self._batches: FileEventPlanner | None = None
        self._retention = CachedLookup(
            self._retention_seconds, description=f"the lifecycle of bucket {self._source.bucket}"
        )
        self._opener = FileOpener.for_source(
            catalog.environment.landing, self._source, lake=catalog.environment.lake, quarantine_refused=True
        )

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Returns a streaming DataFrame without rows. Its batches have bounded numbers of files and bytes; the driver
        reads their file events itself.
        """
        source = self._source
        limits = SliceLimits(
            max_files=min(source.max_files_per_batch, MAX_BATCH_FILES), max_bytes=source.max_bytes_per_batch
        )
        self._batches = FileEventPlanner(
            FileEventLog(self._lake, source.relay),
            bucket=source.bucket,
            prefix=source.prefix,
            glob=source.glob,
            limits=limits,
            start=start,
        )
        return planned_frame(spark, self._batches)

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> ObjectSlice:
        """Returns the batch's objects. Their file events are read in the driver, because they are few and small."""
        if self._batches is None:
            raise RuntimeError("slice_of was called before frame")
        start, end = offsets()
        return object_slice(self._batches.rows(start or None, end), self._opener)

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns number and bytes of unread files in the log, the time of the oldest, and the bucket's retention."""
        unread = self._log.backlog(
            finished_seq(progress), bucket=self._source.bucket, prefix=self._source.prefix, glob=self._source.glob
        )
        return {
            "backlog_files": unread.files,
            "backlog_bytes": unread.bytes,
            "oldest_pending_at": unread.oldest_at.isoformat() if unread.oldest_at else None,
            "retention_seconds": self._retention.read(),
        }

    def _retention_seconds(self) -> float | None:
        return bucket_retention_seconds(self._environment.landing, self._source.bucket, self._source.prefix)


def object_slice(events: pa.Table, opener: FileOpener) -> ObjectSlice:
    """Converts file events to an `ObjectSlice`, with statistics for the ledger."""
    rows = events.sort_by("seq").to_pylist()
    references = [
        FileReference(row["seq"], row["key"], row["etag"], row.get("version_id"), event_time_us(row["event_time"]))
        for row in rows
    ]
    sizes = [max(1, row["size"] or 1) for row in rows]
    metadata: dict[str, Any] = {"files": len(rows), "bytes": sum(sizes)}
    if rows:
        metadata |= {
            "first_seq": rows[0]["seq"],
            "last_seq": rows[-1]["seq"],
            "oldest_arrived_at": min(row["event_time"] for row in rows).isoformat(),
            "newest_arrived_at": max(row["event_time"] for row in rows).isoformat(),
            "arrived_us": _sample_evenly(
                [event_time for row in rows if (event_time := event_time_us(row["event_time"])) is not None]
            ),
        }
    return ObjectSlice(references, sizes, metadata, opener)


def _sample_evenly(arrivals: list[int], max_count: int = 20) -> list[int]:
    """Returns at most `most` arrivals, evenly by rank, including the first and the last."""
    ordered = sorted(arrivals)
    if len(ordered) <= max_count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (max_count - 1))] for index in range(max_count)]


def finished_seq(progress: Mapping[str, Any] | None) -> int:
    """Returns the last `seq` that a query has processed; 0 before the first batch."""
    offset = progress["endOffset"] if progress else None
    if offset is None:
        return 0
    return int((json.loads(offset) if isinstance(offset, str) else offset)["seq"])
