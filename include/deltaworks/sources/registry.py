"""What a pipeline's stream can read: one module a kind of source, registered here.

A source gives Spark a streaming DataFrame, says what a batch of it holds, and how far behind the query is. Everything
after that, from parsing to the ledger, is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from deltaworks.sources.base import SourceSlice
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchSource(Protocol):
    """One pipeline's source. Used by the driver of its stream alone."""

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """The streaming DataFrame, beginning after the offset `start`, or where the declaration says if that is None.

        `start` is an offset as Spark wrote it for a query of this source.
        """

    def slice_of(self, batch: DataFrame, *, batch_id: int) -> SourceSlice:
        """What this batch reads. `batch_id` is ours, not Spark's."""

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Heartbeat fields: how far behind the query is. `progress` is its last one, of this source; None before."""


def open_source(catalog: Catalog, spec: PipelineSpec) -> BatchSource:
    """The source that a pipeline declares."""
    return SOURCES[spec.source.kind](catalog, spec)


def _files(catalog: Catalog, spec: PipelineSpec) -> BatchSource:
    from deltaworks.sources.objects.source import FileSource

    return FileSource(catalog, spec)


def _kafka(catalog: Catalog, spec: PipelineSpec) -> BatchSource:
    from deltaworks.sources.kafka.source import KafkaSource

    return KafkaSource(catalog, spec)


def _kinesis(catalog: Catalog, spec: PipelineSpec) -> BatchSource:
    from deltaworks.sources.kinesis.source import KinesisSource

    return KinesisSource(catalog, spec)


def _delta(catalog: Catalog, spec: PipelineSpec) -> BatchSource:
    from deltaworks.sources.delta.source import DeltaSource

    return DeltaSource(catalog, spec)


#: By `kind` of a pipeline's source. Imported when asked for: nobody pays for the sources of others.
SOURCES: Mapping[str, Callable[[Catalog, PipelineSpec], BatchSource]] = {
    "s3_sqs": _files,
    "cloud_files": _files,
    "kafka": _kafka,
    "kinesis": _kinesis,
    "delta": _delta,
}
