"""Measures the time from landing to bronze and gold for each object.

It combines three records: the creation time in the file event log, the batch and table version in the ledger, and the
input version that each gold build read, in the commits of the gold table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.control import paths
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sources import require_object_source
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history


@dataclass(frozen=True, slots=True)
class Freshness:
    """Percentiles of the seconds from landing to bronze and to gold."""

    pipeline: str
    objects: int
    bronze_p50_seconds: float
    bronze_p95_seconds: float
    bronze_p99_seconds: float
    gold_p50_seconds: float
    gold_p95_seconds: float
    gold_p99_seconds: float


@dataclass(frozen=True, slots=True)
class ObjectAge:
    """Landing time of an object, and seconds until it was in bronze and in gold; None if it is not there yet."""

    landed_at: datetime
    bronze_seconds: float
    gold_seconds: float | None


def object_ages(catalog: Catalog, pipeline: str) -> list[ObjectAge]:
    """Returns the objects of a pipeline that have reached bronze; none before its gold is built.

    An object is in gold once all tables that the stream builds from the first table's input have it; if the stream
    builds none, once the first table has it.
    """
    spec = catalog.pipeline(pipeline)
    table = spec.gold.tables[0].reads[0]
    refreshed = [gold.name for gold in spec.gold.stream_refreshed_tables if table in gold.reads]
    lake = Lake(catalog.environment.lake)
    batches = _batches(lake, pipeline, table)
    builds = [_builds(lake, paths.table(pipeline, name), table) for name in refreshed or [spec.gold.tables[0].name]]
    source = require_object_source(
        spec.source, pipeline=pipeline, unsupported="there are no landing times to measure from"
    )
    events = lake.rows(file_events_key(source.relay), columns=["seq", "key", "event_time"])
    if not batches or not all(builds) or events is None:
        return []
    ages = []
    for event in events.to_pylist():
        if not event["key"].startswith(source.prefix):
            continue
        batch = next((candidate for candidate in batches if candidate[0] <= event["seq"] <= candidate[1]), None)
        if batch is None:
            continue
        landed_at: datetime = event["event_time"]
        built = [next((at for version, at in of_table if version >= batch[3]), None) for of_table in builds]
        instants = [at for at in built if at is not None]
        in_gold = (max(instants) - landed_at).total_seconds() if len(instants) == len(builds) else None
        ages.append(ObjectAge(landed_at, (batch[2] - landed_at).total_seconds(), in_gold))
    return ages


def compute_freshness(pipeline: str, ages: Sequence[ObjectAge], *, start_seconds: float = 0.0) -> Freshness | None:
    """Computes percentiles over all objects that have reached gold; None if none has.

    Args:
        start_seconds: excludes objects that landed this soon after the first one, while streams were starting.
    """
    began = min((age.landed_at for age in ages), default=None)
    counted = [age for age in ages if began and (age.landed_at - began).total_seconds() >= start_seconds]
    answered = [age.gold_seconds for age in counted if age.gold_seconds is not None]
    if not answered:
        return None
    bronze = [age.bronze_seconds for age in counted]
    return Freshness(pipeline, len(answered), *_percentiles(bronze), *_percentiles(answered))


def _batches(lake: Lake, pipeline: str, table: str) -> list[tuple[int, int, datetime, int]]:
    """Returns first and last seq, completion time and table version of every complete batch, in order."""
    import json

    store = lake.rows(paths.pipeline_control(pipeline, "checkpoint_store"))
    steps = lake.rows(paths.pipeline_control(pipeline, "batch_metadata_store"))
    if store is None or steps is None:
        return []
    versions = {row["batch_id"]: row["delta_version"] for row in steps.to_pylist() if row["table_name"] == table}
    batches = []
    last_version = 0
    for row in sorted(store.to_pylist(), key=lambda row: row["batch_id"]):
        source = json.loads(row["source_metadata"])
        last_version = versions.get(row["batch_id"], last_version)
        if "first_seq" in source:
            batches.append((source["first_seq"], source["last_seq"], row["completed_at"], last_version))
    return batches


def _builds(lake: Lake, key: str, table: str) -> list[tuple[int, datetime]]:
    """Returns the version of `table` that each gold build read, and the commit time, oldest first."""
    handle = lake.open(key)
    if handle is None:
        return []
    commits = sorted(commit_history(lake, key, newest=handle.version()), key=lambda commit: commit.version)
    return [(_read_version(commit.metadata, table), commit.at) for commit in commits if "built_from" in commit.metadata]


def _read_version(metadata: dict[str, Any], table: str) -> int:
    return int(metadata["built_from"].get(table, -1))


def _percentiles(seconds: list[float]) -> tuple[float, float, float]:
    if len(seconds) == 1:
        return seconds[0], seconds[0], seconds[0]
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[94], cuts[98]
