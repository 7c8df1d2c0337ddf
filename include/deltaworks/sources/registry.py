"""Registers the kinds of sources that a pipeline can read. Each kind is one package and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaworks.sources.base import Source
    from deltaworks.sources.record_source import RecordSource
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.pipeline import PipelineSpec

#: Source classes by `kind`, called with catalog and pipeline. Imported on first use, so a pipeline imports only its own
#: source.
SOURCES: Mapping[str, str] = {
    "s3_sqs": "deltaworks.sources.objects.source:FileSource",
    "cloud_files": "deltaworks.sources.objects.source:FileSource",
    "kafka": "deltaworks.sources.kafka.source:KafkaSource",
    "kinesis": "deltaworks.sources.kinesis.source:KinesisSource",
    "delta": "deltaworks.sources.delta:DeltaSource",
}
#: Classes that re-read records, by kind. Sources of objects need none, because objects can be opened again.
RECORD_SOURCES: Mapping[str, str] = {
    "kafka": "deltaworks.sources.kafka.source:KafkaRecordSource",
    "kinesis": "deltaworks.sources.kinesis.source:KinesisRecordSource",
}


def open_source(catalog: Catalog, spec: PipelineSpec) -> Source:
    """Creates the source that a pipeline declares."""
    source: Source = _import_object(SOURCES[spec.source.kind])(catalog, spec)
    return source


def open_record_source(catalog: Catalog, spec: PipelineSpec) -> RecordSource:
    """Creates the record source that re-reads a pipeline's source.

    Raises:
        KeyError: the pipeline's source has no records.
    """
    records: RecordSource = _import_object(RECORD_SOURCES[spec.source.kind])(catalog, spec)
    return records


def _import_object(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
