"""The kinds of source that a pipeline can read: a folder and a line each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaworks.errors import DeltaworksError
    from deltaworks.sources.base import Source
    from deltaworks.sources.record_source import RecordSource
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.pipeline import PipelineSpec

#: By `kind` of a pipeline's source, its class, called with the catalog and the pipeline. Imported on first use: nobody
#: pays for the sources of others.
SOURCES: Mapping[str, str] = {
    "s3_sqs": "deltaworks.sources.objects.source:FileSource",
    "cloud_files": "deltaworks.sources.objects.source:FileSource",
    "kafka": "deltaworks.sources.kafka.source:KafkaSource",
    "kinesis": "deltaworks.sources.kinesis.source:KinesisSource",
    "delta": "deltaworks.sources.delta.source:DeltaSource",
}
#: By kind, what reads records again: of streams, which keep no objects.
RECORD_SOURCES: Mapping[str, str] = {
    "kafka": "deltaworks.sources.kafka.record_source:KafkaRecordSource",
    "kinesis": "deltaworks.sources.kinesis.record_source:KinesisRecordSource",
}
#: The errors that servers of a kind and their clients report as text: functions from that text to one of our errors.
ERROR_PARSERS: Mapping[str, str] = {
    "kafka": "deltaworks.sources.kafka.errors:parse_error",
    "delta": "deltaworks.sources.delta.errors:parse_error",
}


def open_source(catalog: Catalog, spec: PipelineSpec) -> Source:
    """The source that a pipeline declares."""
    source: Source = _import_object(SOURCES[spec.source.kind])(catalog, spec)
    return source


def open_record_source(catalog: Catalog, spec: PipelineSpec) -> RecordSource:
    """What reads the records of a pipeline's source again.

    Raises:
        KeyError: its source is none of records.
    """
    records: RecordSource = _import_object(RECORD_SOURCES[spec.source.kind])(catalog, spec)
    return records


def source_error(text: str) -> DeltaworksError | None:
    """What a source's foreign error means; None where no source knows it. See `control.job.as_deltaworks_error`."""
    return next((error for place in ERROR_PARSERS.values() if (error := _import_object(place)(text)) is not None), None)


def _import_object(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
