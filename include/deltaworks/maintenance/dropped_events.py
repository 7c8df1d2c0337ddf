"""Collects the collector sequence numbers of events that were dropped on purpose.

Parsers record in their batch which events they dropped because of opt-out or erasure. Erasures record the rows they
removed from tables, and the events they removed from landed objects before a stream read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.erasure import ErasureWindows
from deltaworks.control.records.reprocess import replaced_collector_numbers_since
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.events.task_findings import DROPPED_SEQUENCE_NUMBERS
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import CHECKPOINT_STORE


def dropped_sequence_numbers(
    catalog: Catalog, objects: ObjectStore, pipelines: Sequence[str], since: datetime
) -> CollectorSequenceNumbers:
    """Returns the sequence numbers of events of these pipelines dropped since a time.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE, ERASURE_UNREADABLE.
    """
    numbers = CollectorSequenceNumbers()
    lake = Lake(catalog.environment.lake)
    specs = [catalog.pipeline(name) for name in pipelines]
    personal = {spec.pipeline: spec.privacy.namespace for spec in specs if spec.privacy is not None}
    for name in personal:
        for packed in _numbers_dropped_by_batches(lake, name, since):
            numbers.add_encoded(packed)
    for namespace in sorted(set(personal.values())):
        for packed in ErasureWindows(objects, namespace).collector_numbers_since(since):
            numbers.add_encoded(packed)
    if personal:
        for packed in replaced_collector_numbers_since(objects, since):
            numbers.add_encoded(packed)
    return numbers


def _numbers_dropped_by_batches(lake: Lake, pipeline: str, since: datetime) -> Iterator[Mapping[str, str]]:
    key, recent = paths.pipeline_control(pipeline, CHECKPOINT_STORE), ds.field("completed_at") >= ds.scalar(since)
    rows = lake.rows(key, columns=["source_metadata"], filters=recent)
    if rows is None:
        return
    for text in rows.column("source_metadata").to_pylist():
        packed = json.loads(text or "{}").get(DROPPED_SEQUENCE_NUMBERS)
        if packed:
            yield packed
