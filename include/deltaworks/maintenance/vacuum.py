"""VACUUM of all tables of a pipeline: deletes files that no version within the retention needs any more.

It starts as a dry run that counts. A retention below seven days is refused: readers and the other writers, which may
hold files that no commit names yet, count on it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyarrow import fs
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import read_user_metadata, user_metadata
from deltaworks.errors import ConfigError
from deltaworks.maintenance.commit_info import USER_METADATA, session_settings
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.held_files import uncommitted_files
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

OPERATION = "vacuum"
MINIMUM_RETENTION_HOURS = 168
_STAT_AT_ONCE = 1_000
#: VACUUM of a table may take hours after it was asked what waits to be committed.
_MARGIN_HOURS = 24
_SETTINGS = {
    # Since Delta 4.1 RETAIN is ignored unless this is off.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "true",
    # Without it VACUUM leaves no trace in the history of a table on S3.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
#: VACUUM lists folders in this many tasks, 10,000 by default: 40 s for an empty table on two cores, instead of one.
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """Files and bytes of one table that were deleted, or would be in a dry run."""

    table: str
    dry_run: bool
    files: int
    bytes: int
    seconds: float
    reason: str = ""


def vacuum_tables(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    retention_hours: int | None = None,
    tables: Sequence[str] | None = None,
) -> list[VacuumResult]:
    """Delete what is no longer needed of a pipeline's tables, those of mutations and quarantine among them.

    Idempotent; safe beside writers whose commits take less than the retention. A table is left out while files that
    are to be committed to it have waited for about that long.

    Args:
        retention_hours: by default `maintenance.vacuum_retention_hours` of the pipeline.
        tables: names of tables; by default all.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT or TABLE_UNKNOWN.
    """
    spec = catalog.pipeline(pipeline)
    hours = spec.maintenance.vacuum_retention_hours if retention_hours is None else retention_hours
    if hours < MINIMUM_RETENTION_HOURS:
        raise ConfigError(
            "VACUUM_RETENTION_TOO_SHORT",
            f"A retention of {hours} h would delete files that running streams and readers still need.",
            hint=f"Use {MINIMUM_RETENTION_HOURS} h or more.",
        )
    lake = Lake(catalog.environment.lake)
    names = _selected(spec, tables)
    held = uncommitted_files(lake, open_objects(catalog.environment.lake), spec.pipeline)
    results = []
    for name in names:
        oldest = held[name].oldest if name in held else None
        if oldest is not None and utc_now() - oldest > timedelta(hours=hours - _MARGIN_HOURS):
            reason = f"left out: files that wait to be committed since {oldest:%Y-%m-%d %H:%M} would be deleted"
            results.append(VacuumResult(name, dry_run, 0, 0, 0.0, reason))
            continue
        results.append(_vacuum(spark, lake, spec.pipeline, name, hours=hours, dry_run=dry_run))
    return results


def _selected(spec: PipelineSpec, tables: Sequence[str] | None) -> list[str]:
    known = [table.name for table in spec.tables]
    known += [live.name for live in spec.live]
    known += [gold.name for gold in spec.gold.tables]
    known += [] if spec.mutations is None else [spec.mutations.names, spec.mutations.intervals]
    known.append("quarantine")
    unknown = sorted(set(tables or ()) - set(known))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no table {', '.join(unknown)}.",
            hint=f"Its tables are {', '.join(known)}.",
        )
    return [name for name in known if not tables or name in tables]


def _vacuum(spark: SparkSession, lake: Lake, pipeline: str, name: str, *, hours: int, dry_run: bool) -> VacuumResult:
    started = time.monotonic()
    key = paths.table(pipeline, name)
    opened = lake.open(key)
    if opened is None:
        return VacuumResult(name, dry_run, 0, 0, 0.0, "it does not exist yet")
    created = opened.metadata().created_time
    if created is not None and time.time() - created / 1000 < hours * 3600:
        return VacuumResult(name, dry_run, 0, 0, 0.0, f"it was created less than {hours} h ago")
    made = user_metadata(pipeline=pipeline, batch=opened.version(), operation=OPERATION, retention_hours=hours)
    command = f"VACUUM delta.`{lake.storage.spark_uri(key)}` RETAIN {hours} HOURS"
    with session_settings(spark, {**_SETTINGS, _LISTING_TASKS: _tasks(spark), USER_METADATA: made}):
        if dry_run:
            found = [row["path"] for row in spark.sql(f"{command} DRY RUN").toLocalIterator()]
            files, size = _sizes(lake, found)
        else:
            spark.sql(command).collect()
            files, size = _deleted(lake, key, after_version=opened.version(), made=made)
    return VacuumResult(name, dry_run, files, size, time.monotonic() - started)


def _tasks(spark: SparkSession) -> str:
    return str(max(8, 4 * spark.sparkContext.defaultParallelism))


def _sizes(lake: Lake, uris: Sequence[str]) -> tuple[int, int]:
    """How many of these are files, folders left out, and their bytes."""
    # Not a URI parser: Hadoop writes these paths unescaped, so that % and # in them are characters of names.
    places = [re.sub(r"^[a-z0-9]+:(//)?", "", uri) for uri in uris]
    files = size = 0
    for start in range(0, len(places), _STAT_AT_ONCE):
        for info in lake.filesystem.get_file_info(places[start : start + _STAT_AT_ONCE]):
            if info.type is fs.FileType.File:
                files, size = files + 1, size + (info.size or 0)
    return files, size


def _deleted(lake: Lake, key: str, *, after_version: int, made: str) -> tuple[int, int]:
    """What our VACUUM's own commits after a version say: VACUUM START has the bytes, VACUUM END the files."""
    opened = lake.open(key)
    newest = opened.version() if opened else after_version
    ours = read_user_metadata(made)
    metrics: dict[str, Any] = {}
    for commit in commit_history(lake, key, newest=newest, limit=newest - after_version):
        if commit.operation.startswith("VACUUM") and commit.metadata == ours:
            metrics |= commit.metrics
    return int(metrics.get("numDeletedFiles", 0)), int(metrics.get("sizeOfDataToDelete", 0))
