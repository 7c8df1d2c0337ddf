"""VACUUM of a pipeline's tables: deletes files that no version within the retention needs.

By default a dry run. The retention of a table is the longest of the configured one, the declared time travel, and the
needs of known readers and writers (`vacuum_holds`). A retention below seven days requires a reason, which is recorded
in the commits.

VACUUM LITE uses only the log and misses files that no commit references. So a FULL one lists the folder weekly. Which
files must stay is decided by our own rules (`vacuum_files`) for every table whose features they support, and by Spark's
VACUUM for the others. With a Spark session, its executors list and delete; without one, threads of this process do.
Tables that VACUUM had to skip, and maintenance runs that overlap, raise alerts; if an alert cannot be raised or
resolved, maintenance continues.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import (
    MAINTENANCE_OVERLAP,
    ExclusiveLock,
    maintenance_lock,
    run_unless_files_held,
)
from deltaworks.control.provenance import parse_user_metadata, user_metadata
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError
from deltaworks.maintenance.deletion_limits import DeletionLimit
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize import SessionFactory
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.maintenance.vacuum_holds import (
    MINIMUM_RETENTION_HOURS,
    SHORTEST_FULL_RETENTION_HOURS,
    Retention,
    check_retention,
    effective_retention,
    holds_on,
)
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.features import is_unsupported_table
from deltaworks.tables.file_workers import MIN_ITEMS_FOR_EXECUTORS, ExecutorWorkers
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.protected_files import UncommittedFiles, existing_files, table_retention_hours, uncommitted_files
from deltaworks.tables.table_swap import table_content
from deltaworks.tables.vacuum_candidates import LogTooShort, SparkRequired

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Must be off: otherwise Delta 4.1 and later ignore RETAIN.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # Must be on for VACUUM to be recorded in the history of a table on S3.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
#: VACUUM lists folders in this many tasks; the default of 10,000 takes 40 s for an empty table on two cores.
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
#: Error class of Delta if the log no longer reaches back to the last VACUUM.
_LITE_UNAVAILABLE = re.compile(r"DELTA_CANNOT_VACUUM_LITE")


def vacuum_with_spark(
    spark: SparkSession, lake: Lake, key: str, *, hours: int, full: bool, dry_run: bool, version: int, metadata: str
) -> tuple[int, int]:
    """Runs VACUUM. Returns the number of files deleted and their bytes (in a dry run: to be deleted).

    Args:
        version: version of the table before VACUUM.
        metadata: the `userMetadata` of the commits.

    Raises:
        LogTooShort: as `vacuum_files`.
    """
    from deltaworks.tables.spark_session import USER_METADATA, override_settings

    mode = "FULL" if full else "LITE"
    command = f"VACUUM delta.`{lake.storage.spark_uri(key)}` {mode} RETAIN {hours} HOURS"
    tasks = str(max(8, 4 * spark.sparkContext.defaultParallelism))
    checked = str(hours >= MINIMUM_RETENTION_HOURS).lower()
    settings = {**_SETTINGS, _RETENTION_CHECK: checked, _LISTING_TASKS: tasks, USER_METADATA: metadata}
    try:
        with override_settings(spark, settings):
            if dry_run:
                return _count_files(lake, [row["path"] for row in spark.sql(f"{command} DRY RUN").toLocalIterator()])
            spark.sql(command).collect()
    except Exception as error:
        if full or not _LITE_UNAVAILABLE.search(str(error)):
            raise
        raise LogTooShort from error
    return _count_deleted(lake, key, after_version=version, metadata=metadata)


def _count_files(lake: Lake, uris: Sequence[str]) -> tuple[int, int]:
    """Returns the number of files among these paths, without folders, and their bytes."""
    # Not a URI parser: Hadoop writes these paths unescaped, so % and # are part of names.
    locations = [re.sub(r"^[a-z0-9]+:(//)?", "", uri) for uri in uris]
    sizes = [info.size or 0 for info in existing_files(lake, locations)]
    return len(sizes), sum(sizes)


def _count_deleted(lake: Lake, key: str, *, after_version: int, metadata: str) -> tuple[int, int]:
    """Returns the files and bytes that this VACUUM deleted, from its commits (END has files, START has bytes)."""
    opened = lake.open(key)
    newest = opened.version() if opened else after_version
    own_metadata = parse_user_metadata(metadata)
    metrics: dict[str, Any] = {}
    for commit in commit_history(lake, key, newest=newest, limit=newest - after_version):
        if commit.operation.startswith("VACUUM") and commit.metadata == own_metadata:
            metrics |= commit.metrics
    return int(metrics.get("numDeletedFiles", 0)), int(metrics.get("sizeOfDataToDelete", 0))


log = logging.getLogger(__name__)
NOT_VACUUMED = "TABLE_NOT_VACUUMED"


@contextlib.contextmanager
def exclusive_maintenance(home: PipelineHome, *, work: str) -> Iterator[ExclusiveLock]:
    """Holds the maintenance lock of a pipeline within a block.

    If the lock is taken, raises an alert, which the next successful run resolves.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    objects, pipeline = home.objects, home.pipeline
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(maintenance_lock(objects, pipeline, work=work))
        except ConcurrencyError as error:
            with contextlib.suppress(DeltaworksError):
                raise_alert(
                    objects, cause=MAINTENANCE_OVERLAP, subject=pipeline, summary=error.message, detail={"work": work}
                )
            raise
        with contextlib.suppress(DeltaworksError):
            resolve_alert(objects, cause=MAINTENANCE_OVERLAP, subject=pipeline)
        yield lock


def alert_not_vacuumed(home: PipelineHome, table: str, *, reason: str) -> None:
    """Raises the alert for a table that VACUUM skips. The table's obsolete files accumulate until it is vacuumed."""
    subject = f"{home.pipeline}.{table}"
    with _log_alert_failures(subject):
        raise_alert(home.objects, cause=NOT_VACUUMED, subject=subject, summary=f"VACUUM skips {subject}: {reason}")


def resolve_not_vacuumed(home: PipelineHome, table: str) -> None:
    """Resolves the alert for a table that was vacuumed."""
    subject = f"{home.pipeline}.{table}"
    with _log_alert_failures(subject):
        resolve_alert(home.objects, cause=NOT_VACUUMED, subject=subject, summary="the table was vacuumed")


@contextlib.contextmanager
def _log_alert_failures(subject: str) -> Iterator[None]:
    try:
        yield
    except DeltaworksError as error:
        log.warning("table=%s its alert could not be raised or resolved: %s", subject, error)


OPERATION = "vacuum"
VacuumMode = Literal["lite", "full"]
#: Interval of FULL runs.
FULL_INTERVAL = timedelta(days=7)
#: Margin in hours, since VACUUM may run for hours after the uncommitted files were listed.
_COMMIT_MARGIN_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """The files and bytes deleted from one table (in a dry run: to be deleted).

    - `retention_hours`: the effective retention; 0 if the table was not vacuumed.
    - `reason`: why the retention differs from the configured one, why the run is FULL, or why nothing was done.
    - `skipped`: whether the table must not be vacuumed.
    - `engine`: what listed and deleted.
    - `spark_work_count`: what a run without Spark left: in a dry run the files, otherwise 1 for a table that only Spark
      can vacuum.
    """

    table: str
    dry_run: bool
    files: int = 0
    bytes: int = 0
    mode: VacuumMode | Literal[""] = ""
    retention_hours: int = 0
    seconds: float = 0.0
    skipped: bool = False
    reason: str = ""
    engine: str = ""
    spark_work_count: int = 0


def vacuum_tables(
    spark: SessionFactory | None,
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    retention_hours: int | None = None,
    below_minimum: str = "",
    mode: VacuumMode | None = None,
    tables: Sequence[str] | None = None,
    max_files: int | None = None,
    limit: DeletionLimit | None = None,
) -> list[VacuumResult]:
    """Deletes unneeded files of a pipeline's tables, including mutation tables and quarantine.

    Idempotent; safe with writers whose commits take less than the retention, and with all known readers. A table is
    skipped while it has uncommitted files almost as old as the retention, or while a reader needs more than the log
    retains; unless in a dry run, this raises an alert. A table that is being restored is skipped.

    Args:
        spark: opens the session, whose executors list and delete. None uses threads, and skips tables that need Spark.
        retention_hours: by default `maintenance.vacuum_retention_hours`.
        below_minimum: the reason for a retention below seven days, which requires one. A table is then skipped while
            a reader, a stream or its declared time travel needs older files.
        mode: by default `lite`, and `full` once a week or if the log does not suffice.
        tables: names of tables; by default all.
        max_files: count first, and delete nothing if more files would be deleted in total.
        limit: count first, and skip an append-only table that would lose a larger share.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT, VACUUM_TOO_LARGE, TABLE_UNKNOWN, READER_UNREADABLE.
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST.
    """
    spec = catalog.pipeline(pipeline)
    hours = spec.maintenance.vacuum_retention_hours if retention_hours is None else retention_hours
    check_retention(hours, below_minimum=below_minimum, mode=mode)
    names = _select_tables(spec, tables)
    make_run = partial(_VacuumRun, spark, catalog, spec, hours=hours, below_minimum=below_minimum.strip(), mode=mode)
    counting, run = make_run(dry_run=True), make_run(dry_run=False)
    if dry_run:
        return [counting.vacuum_table(name) for name in names]
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    with exclusive_maintenance(home, work="VACUUM") as lock:
        if max_files is not None:
            _reject_too_large([counting.vacuum_table(name) for name in names], max_files)
        results = []
        bounded = {table.name for table in spec.tables if not Layout.from_spec(table).has_mutable_rows}
        for name in names:
            lock.check()
            exceeded = None
            if limit is not None and name in bounded and not (counted := counting.vacuum_table(name)).skipped:
                exceeded = limit_exceeded(counted, limit, live_bytes=run.live_bytes(name))
            results.append(exceeded or run.vacuum_table(name))
            if results[-1].skipped:
                alert_not_vacuumed(home, name, reason=results[-1].reason)
            elif results[-1].mode:
                resolve_not_vacuumed(home, name)
    return results


def _reject_too_large(counted: Sequence[VacuumResult], max_files: int) -> None:
    files = sum(result.files for result in counted)
    if files > max_files:
        tables = ", ".join(f"{result.table} {result.files:,}" for result in counted if result.files)
        raise ConfigError(
            "VACUUM_TOO_LARGE",
            f"VACUUM would delete {files:,} files ({tables}), more than {max_files:,}. Nothing was deleted.",
        )


def limit_exceeded(counted: VacuumResult, limit: DeletionLimit, *, live_bytes: int) -> VacuumResult | None:
    """Returns a result that skips the table if the counted deletion exceeds the limit; otherwise None. Pure.

    Args:
        live_bytes: bytes of the table's current files.
    """
    total = counted.bytes + live_bytes
    if counted.bytes <= limit.max_bytes(total):
        return None
    share = f"{counted.bytes / total:.0%} of its {total / 1e9:,.1f} GB on storage"
    reason = (
        f"skipped: deleting {counted.files:,} files, {share}, exceeds max_removed_share: review what replaced "
        "them, then run vacuum_tables"
    )
    return replace(counted, dry_run=False, files=0, bytes=0, mode="", skipped=True, reason=reason)


class _VacuumRun:
    """One VACUUM of some tables of a pipeline."""

    def __init__(
        self,
        spark: SessionFactory | None,
        catalog: Catalog,
        spec: PipelineSpec,
        *,
        dry_run: bool,
        hours: int,
        below_minimum: str,
        mode: VacuumMode | None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._spec = spec
        self._dry_run = dry_run
        self._hours = hours
        self._below_minimum = below_minimum
        self._mode = mode
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._uncommitted = uncommitted_files(self._lake, self._home)
        self._executors = None if spark is None else ExecutorWorkers(spark())

    def vacuum_table(self, name: str) -> VacuumResult:
        """Vacuums one table, or returns a result with the reason for skipping it."""
        return run_unless_files_held(
            self._home.objects,
            self._spec.pipeline,
            name,
            work="VACUUM",
            run=lambda: self._vacuum_supported_table(name),
            on_skip=lambda reason: VacuumResult(table=name, dry_run=False, reason=reason),
            dry_run=self._dry_run,
        )

    def _vacuum_supported_table(self, name: str) -> VacuumResult:
        try:
            return self._vacuum_table(name)
        except ContractError as error:
            if not is_unsupported_table(error):
                raise
            return VacuumResult(table=name, dry_run=self._dry_run, skipped=True, reason=error.message)

    def live_bytes(self, name: str) -> int:
        """Returns the bytes of the table's current files."""
        opened = self._lake.open(paths.table(self._spec.pipeline, name))
        return 0 if opened is None else table_content(opened).bytes

    def _vacuum_table(self, name: str) -> VacuumResult:
        started, key = time.monotonic(), paths.table(self._spec.pipeline, name)
        result = VacuumResult(table=name, dry_run=self._dry_run)
        opened = self._lake.open(key)
        if opened is None:
            return replace(result, reason="it does not exist yet")
        if (pending_reason := _pending_commit_reason(self._uncommitted.get(name), self._hours)) is not None:
            return replace(result, skipped=True, reason=pending_reason)
        retention = effective_retention(
            self._hours,
            promised_hours=self._spec.maintenance.time_travel_hours,
            log_hours=table_retention_hours(opened),
            # Read right before the VACUUM of each table, because earlier tables may take an hour.
            holds=holds_on(self._catalog, self._lake, self._home, name),
            now=utc_now(),
            yields_to_holds=not self._below_minimum,
        )
        if retention.skipped:
            return replace(result, skipped=True, reason=retention.reason)
        created = opened.metadata().created_time
        if created is not None and time.time() - created / 1000 < retention.hours * 3600:
            young = f"it was created less than {retention.hours} h ago"
            return replace(result, reason="; ".join(text for text in (young, retention.reason) if text))
        vacuumed = self._vacuum_with_retention(result, key, retention, version=opened.version())
        return replace(vacuumed, seconds=time.monotonic() - started)

    def _vacuum_with_retention(
        self, result: VacuumResult, key: str, retention: Retention, *, version: int
    ) -> VacuumResult:
        """Vacuums a table with its effective retention."""
        mode, mode_reason = self._choose_mode(result.table)
        vacuum = partial(self._delete_files, key, hours=retention.hours, version=version)
        try:
            try:
                files, size, engine = vacuum(mode=mode)
            except LogTooShort:
                mode_reason = "its log does not reach back to the last VACUUM"
                if self._hours < SHORTEST_FULL_RETENTION_HOURS:
                    hint = f"use mode full, with {SHORTEST_FULL_RETENTION_HOURS} h or more"
                    return replace(result, skipped=True, reason=f"skipped: {mode_reason}; {hint}")
                if self._mode is not None:
                    return replace(result, skipped=True, reason=f"skipped: {mode_reason}; use mode full")
                mode = "full"
                files, size, engine = vacuum(mode=mode)
        except SparkRequired as reason:
            skipped = f"skipped: only Spark can vacuum it: {reason}"
            return replace(result, skipped=True, reason=skipped, spark_work_count=1)
        if mode == "full" and not self._dry_run:
            _record_full(self._home, result.table)
        listed = f"FULL: {mode_reason}" if mode == "full" and mode_reason else ""
        return replace(
            result,
            files=files,
            bytes=size,
            mode=mode,
            retention_hours=retention.hours,
            reason="; ".join(text for text in (retention.reason, listed) if text),
            engine=engine,
            spark_work_count=files if self._dry_run else 0,
        )

    def _choose_mode(self, name: str) -> tuple[VacuumMode, str]:
        if self._mode is not None:
            return self._mode, ""
        if self._hours < SHORTEST_FULL_RETENTION_HOURS:
            return "lite", ""
        last = _last_full_times(self._home).get(name)
        if last is None:
            return "full", "no FULL run yet"
        if utc_now() - last > FULL_INTERVAL:
            return "full", f"the last FULL run was on {last:%Y-%m-%d}"
        return "lite", ""

    def _delete_files(self, key: str, *, mode: VacuumMode, hours: int, version: int) -> tuple[int, int, str]:
        """Deletes files. Returns the number of files, their bytes, and what listed and deleted them."""
        justification = {"below_minimum": self._below_minimum} if hours < MINIMUM_RETENTION_HOURS else {}
        metadata = user_metadata(
            pipeline=self._spec.pipeline,
            batch=version,
            operation=OPERATION,
            retention_hours=hours,
            mode=mode,
            **justification,
        )
        full, dry_run = mode == "full", self._dry_run
        executed = 0 if self._executors is None else self._executors.executed
        try:
            files, size = vacuum_files(
                self._lake,
                self._home.objects,
                key,
                hours=hours,
                full=full,
                dry_run=dry_run,
                now=utc_now(),
                user_metadata=metadata,
                workers=self._executors,
            )
        except SparkRequired as reason:
            if self._spark is None:
                raise
            files, size = vacuum_with_spark(
                self._spark(),
                self._lake,
                key,
                hours=hours,
                full=full,
                dry_run=dry_run,
                version=version,
                metadata=metadata,
            )
            return files, size, f"Spark's VACUUM, since only Spark can: {reason}"
        return files, size, self._describe_engine(executed)

    def _describe_engine(self, executed_before: int) -> str:
        if self._executors is None:
            return "a process without Spark"
        executed = self._executors.executed - executed_before
        if executed:
            return f"Spark's executors: {executed:,} listings and deletions"
        return f"the driver of the Spark job, since there were fewer than {MIN_ITEMS_FOR_EXECUTORS} requests"


def _pending_commit_reason(uncommitted: UncommittedFiles | None, hours: int) -> str | None:
    """Returns why uncommitted files forbid a VACUUM, which would delete them as orphans; empty if they do not."""
    if (
        uncommitted is None
        or uncommitted.oldest_prepared_at is None
        or utc_now() - uncommitted.oldest_prepared_at <= _max_pending_age(hours)
    ):
        return None
    return f"skipped: uncommitted files from {uncommitted.oldest_prepared_at:%Y-%m-%d %H:%M} would be deleted"


def _max_pending_age(hours: int) -> timedelta:
    return timedelta(hours=hours - min(_COMMIT_MARGIN_HOURS, hours / 2))


def _last_full_times(home: PipelineHome) -> dict[str, datetime]:
    """Returns the time of the last FULL run by table; empty if the record is unreadable."""
    stored = home.objects.get(paths.vacuum_record(home.pipeline))
    try:
        record = json.loads(stored.data)["full"] if stored is not None else {}
        times = {name: parse_iso(text) for name, text in record.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: at for name, at in times.items() if at is not None}


def _record_full(home: PipelineHome, name: str) -> None:
    recorded = {table: at.isoformat() for table, at in _last_full_times(home).items()}
    home.objects.put(paths.vacuum_record(home.pipeline), json.dumps({"full": {**recorded, name: iso_now()}}).encode())


def _select_tables(spec: PipelineSpec, tables: Sequence[str] | None) -> list[str]:
    names = [table.name for table in spec.tables]
    names += [keyed.name for keyed in spec.keyed_tables]
    names += [live.name for live in spec.live]
    names += [gold.name for gold in spec.gold.tables]
    names += [reference.name for reference in spec.references] + [model.name for model in spec.models]
    names += [] if spec.mutations is None else [spec.mutations.names, spec.mutations.intervals]
    names += spec.engine_tables
    unknown = sorted(set(tables or ()) - set(names))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no table {', '.join(unknown)}.",
            hint=nearest_names_hint(unknown, names, prefix="Its tables are"),
        )
    return [name for name in names if not tables or name in tables]
