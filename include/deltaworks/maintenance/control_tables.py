"""Nightly work on a pipeline's control tables, without a JVM: compacts them, and learns the usual input of each hour.

The ledger and the progress table get a file per batch (up to 40,000 per month), which slows readers down. Compaction
changes no row; streams retry commits that conflict with it. The usual input is read from two columns of the last four
weeks of the progress table and kept as one object for the health check.

As a job: `python -m deltaworks.maintenance.control_tables --pipeline games`, by default a dry run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.limits import MAX_DAYS, InputRate, median_input_rate, sum_by_hour, write_input_rate
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance.table_health.catalog_tables import CONTROL_TABLES
from deltaworks.maintenance.vacuum import exclusive_maintenance
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

OPERATION = "compact_control_table"
#: Tables with fewer files are not compacted.
MIN_FILES = 200
TARGET_BYTES = 64 << 20
RETENTION_HOURS = 168
#: The table of health snapshots, which all pipelines share.
SNAPSHOT_TABLE = "table_health"


@dataclass(frozen=True, slots=True)
class ControlTableResult:
    """The counts for one table (in a dry run: expected counts)."""

    table: str
    dry_run: bool
    files_merged: int
    files_written: int
    files_deleted: int
    seconds: float
    reason: str = ""


def compact_control_tables(
    catalog: Catalog, pipeline: str, *, dry_run: bool = True, min_files: int = MIN_FILES
) -> list[ControlTableResult]:
    """Compacts the control tables of a pipeline, and deletes files that were compacted a week ago.

    Includes the ledger, the progress table, and the health snapshots shared by all pipelines. Idempotent; safe while
    the stream runs.

    Args:
        min_files: skip tables with fewer files.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST; not in a dry run.
    """
    catalog.pipeline(pipeline)
    lake = Lake(catalog.environment.lake)
    maintain = partial(_compact_and_clean, lake, pipeline, dry_run=dry_run, min_files=min_files)
    pipeline_tables = {name: paths.pipeline_control(pipeline, name) for name in CONTROL_TABLES}
    if dry_run:
        return [
            *(maintain(name, key) for name, key in pipeline_tables.items()),
            maintain(SNAPSHOT_TABLE, paths.table_snapshots()),
        ]
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    results = []
    with exclusive_maintenance(home, work="the upkeep of control tables") as lock:
        for name, key in pipeline_tables.items():
            lock.check()
            results.append(maintain(name, key))
    try:
        with maintenance_lock(home.objects, pipeline, work="its upkeep", folder=paths.table_snapshots_maintenance()):
            results.append(maintain(SNAPSHOT_TABLE, paths.table_snapshots()))
    except ConcurrencyError as error:
        if error.condition != "MAINTENANCE_RUNNING":
            raise
        results.append(
            ControlTableResult(SNAPSHOT_TABLE, dry_run, 0, 0, 0, 0.0, ("another pipeline's run compacts it"))
        )
    return results


def _compact_and_clean(
    lake: Lake, pipeline: str, name: str, key: str, *, dry_run: bool, min_files: int
) -> ControlTableResult:
    started = time.monotonic()
    table = lake.open(key)
    if table is None:
        return ControlTableResult(name, dry_run, 0, 0, 0, 0.0, "it does not exist yet")
    metadata = user_metadata(pipeline=pipeline, batch=table.version(), operation=OPERATION)
    properties = CommitProperties(custom_metadata={"userMetadata": metadata})
    files = len(table.file_uris())
    merged, into, reason = 0, 0, ""
    if files < min_files:
        reason = f"it has {files} files only"
    elif dry_run:
        merged = files
    else:
        merged, into = _compact(table, properties)
    deleted = table.vacuum(RETENTION_HOURS, dry_run=dry_run, commit_properties=properties)
    return ControlTableResult(name, dry_run, merged, into, len(deleted), time.monotonic() - started, reason)


def _compact(table: DeltaTable, properties: CommitProperties) -> tuple[int, int]:
    metrics = table.optimize.compact(target_size=TARGET_BYTES, commit_properties=properties)
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def learn_input_rate(catalog: Catalog, pipeline: str, *, now: datetime | None = None) -> InputRate:
    """Computes and stores the usual input of a pipeline. Idempotent; safe while the stream runs."""
    catalog.pipeline(pipeline)
    now = now or utc_now()
    since = now - timedelta(days=MAX_DAYS + 1)
    progress = Lake(catalog.environment.lake).rows(
        paths.progress(pipeline),
        columns=["at", "rows"],
        filters=(pc.field("at") >= since) & (pc.field("rows") > 0),
    )
    rows = progress.to_pylist() if progress is not None else []
    inputs = [(row["at"].astimezone(UTC), int(row["rows"])) for row in rows]
    first = min((at for at, _ in inputs), default=now)
    norm = median_input_rate(sum_by_hour(inputs), first_input_at=first, now=now)
    objects = open_objects(catalog.environment.lake)
    write_input_rate(objects, paths.input_rate(paths.pipeline_control(pipeline)), norm)
    return norm
