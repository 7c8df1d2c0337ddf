"""How long an object took from landing to being in an answer, object by object.

Three records show it: the file event log when the store made the object, the ledger which batch and table version
took it, and a gold table's commits which version of its input each build read.
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
from deltaworks.specs.sources.selection import require_object_source
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history


@dataclass(frozen=True, slots=True)
class Freshness:
    """Seconds from landing to bronze and to gold."""

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
    """When an object landed, and how many seconds later it was in bronze, and in gold; None while it is not."""

    landed_at: datetime
    bronze_seconds: float
    gold_seconds: float | None


def object_ages(catalog: Catalog, pipeline: str) -> list[ObjectAge]:
    """The objects of a pipeline that have reached bronze; none while its gold has not been built.

    An object is in gold once all tables have it that the stream builds of the first one's input; where it builds none,
    the first table.
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
    """Freshness over all objects that have reached gold; None where none has.

    Args:
        start_seconds: objects that landed so soon after the first are left out: they waited for streams to start.
    """
    began = min((age.landed_at for age in ages), default=None)
    counted = [age for age in ages if began and (age.landed_at - began).total_seconds() >= start_seconds]
    answered = [age.gold_seconds for age in counted if age.gold_seconds is not None]
    if not answered:
        return None
    bronze = [age.bronze_seconds for age in counted]
    return Freshness(pipeline, len(answered), *_percentiles(bronze), *_percentiles(answered))


def _batches(lake: Lake, pipeline: str, table: str) -> list[tuple[int, int, datetime, int]]:
    """First and last seq, completion and the table's version of every complete batch, in order."""
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
    """The version of `table` each build of the gold table read, and when it was committed, oldest first."""
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
