"""VACUUM of all tables of a pipeline: deletes files that no version within the retention needs any more.

By default it is a dry run that counts. A table's files are kept for the longest time that the pipeline's retention, its
promised time travel, and every known reader and writer need (`vacuum_holds`); less than seven days
only with a reason, which the commits then carry.

A table is vacuumed by its log alone where that is possible (LITE), without listing its folder. That covers the files
that commits removed, but not those that no commit ever named, so once a week the folder is listed (FULL). Both are done
in this process (`vacuum_files`); only a table that asks for more than this project understands is left to Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import run_unless_files_held
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.maintenance.alerts import alert_not_vacuumed, exclusive_maintenance, resolve_not_vacuumed
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize import Sessions
from deltaworks.maintenance.unattended import NightBound
from deltaworks.maintenance.vacuum_by_spark import vacuum_by_spark
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.maintenance.vacuum_holds import (
    MINIMUM_RETENTION_HOURS,
    Retention,
    check_retention,
    holds_on,
    retention_of,
)
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import UncommittedFiles, table_retention_hours, uncommitted_files
from deltaworks.tables.table_swap import table_content
from deltaworks.tables.vacuum_candidates import LogTooShort, SparkRequired

OPERATION = "vacuum"
Mode = Literal["lite", "full"]
#: The time after which a folder is listed again.
FULL_EVERY = timedelta(days=7)
#: VACUUM of a table may take hours after the files that wait to be committed were read.
_MARGIN_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """Files and bytes of one table that were deleted, or would be in a dry run.

    `retention_hours` is the retention in force, 0 for a table that was not vacuumed; `reason` says why it differs from
    the configured one, why the folder was listed, or why nothing was done. `skipped` where the
    table must not be vacuumed.
    """

    table: str
    dry_run: bool
    files: int = 0
    bytes: int = 0
    mode: Mode | Literal[""] = ""
    retention_hours: int = 0
    seconds: float = 0.0
    skipped: bool = False
    reason: str = ""


def vacuum_tables(
    spark: Sessions | None,
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    retention_hours: int | None = None,
    below_minimum: str = "",
    mode: Mode | None = None,
    tables: Sequence[str] | None = None,
    max_files: int | None = None,
    bound: NightBound | None = None,
) -> list[VacuumResult]:
    """Delete the files that a pipeline's tables no longer need, those of mutations and quarantine included.

    Idempotent; safe beside writers whose commits take less than the retention, and beside every known reader. A table
    is skipped while files that wait to be committed to it are about as old as the retention, and while somebody needs
    more than its log remembers; except in a dry run that raises an alert. A table that is being restored is skipped.

    Args:
        spark: opens the session, for the first table that needs it. None leaves such tables out.
        retention_hours: by default `maintenance.vacuum_retention_hours` of the pipeline.
        below_minimum: the reason for a retention of less than seven days, which is refused without one. Holds and
            promised time travel count all the same.
        mode: by default `lite`, and `full` once a week and where the log does not suffice.
        tables: names of tables; by default all.
        max_files: count first, and delete nothing where the tables together would lose more files.
        bound: count first, and skip a table of rows that only come which would lose more; others have none.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT, VACUUM_TOO_LARGE, TABLE_UNKNOWN, READER_UNREADABLE.
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST.
    """
    spec = catalog.pipeline(pipeline)
    hours = spec.maintenance.vacuum_retention_hours if retention_hours is None else retention_hours
    check_retention(hours, below_minimum=below_minimum)
    names = _selected(spec, tables)
    run_of = partial(_Run, spark, catalog, spec, hours=hours, below_minimum=below_minimum.strip(), mode=mode)
    counting, run = run_of(dry_run=True), run_of(dry_run=False)
    if dry_run:
        return [counting.table(name) for name in names]
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    with exclusive_maintenance(home, work="VACUUM") as lock:
        if max_files is not None:
            _refuse_too_large([counting.table(name) for name in names], max_files)
        results = []
        bounded = {table.name for table in spec.tables if not Layout.of(table).rewritten}
        for name in names:
            lock.check()
            of_table = bound if name in bounded else None
            refused = of_table and over_bound(counting.table(name), of_table, live_bytes=run.live_bytes(name))
            results.append(refused or run.table(name))
            if results[-1].skipped:
                alert_not_vacuumed(home, name, reason=results[-1].reason)
            elif results[-1].mode:
                resolve_not_vacuumed(home, name)
    return results


def _refuse_too_large(counted: Sequence[VacuumResult], max_files: int) -> None:
    files = sum(result.files for result in counted)
    if files > max_files:
        tables = ", ".join(f"{result.table} {result.files:,}" for result in counted if result.files)
        raise ConfigError(
            "VACUUM_TOO_LARGE",
            f"VACUUM would delete {files:,} files ({tables}), more than {max_files:,}. Nothing was deleted.",
            hint="Files have come out of use since they were counted: count again, then give a higher bound.",
        )


def over_bound(counted: VacuumResult, bound: NightBound, *, live_bytes: int) -> VacuumResult | None:
    """The result of a table that a night leaves alone, since it would lose too much; None of any other. Pure.

    Args:
        live_bytes: of the files that the table is made of.
    """
    total = counted.bytes + live_bytes
    if counted.bytes <= bound.bytes(total):
        return None
    share = f"{counted.bytes / total:.0%} of its {total / 1e9:,.1f} GB on storage"
    reason = (
        f"skipped: {counted.files:,} files, {share}, would go, more than a night removes (max_removed_share): "
        "see what replaced them, then run vacuum_tables"
    )
    return replace(counted, dry_run=False, files=0, bytes=0, mode="", skipped=True, reason=reason)


class _Run:
    """One VACUUM of some tables of a pipeline."""

    def __init__(
        self,
        spark: Sessions | None,
        catalog: Catalog,
        spec: PipelineSpec,
        *,
        dry_run: bool,
        hours: int,
        below_minimum: str,
        mode: Mode | None,
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
        self._held = uncommitted_files(self._lake, self._home)

    def table(self, name: str) -> VacuumResult:
        """Vacuum one table, or return the reason why not."""
        return run_unless_files_held(
            self._home.objects,
            self._spec.pipeline,
            name,
            work="VACUUM",
            run=lambda: self._vacuum_table(name),
            on_skip=lambda reason: VacuumResult(table=name, dry_run=False, reason=reason),
            dry_run=self._dry_run,
        )

    def live_bytes(self, name: str) -> int:
        """The bytes of the files that the table is made of."""
        opened = self._lake.open(paths.table(self._spec.pipeline, name))
        return 0 if opened is None else table_content(opened).bytes

    def _vacuum_table(self, name: str) -> VacuumResult:
        started, key = time.monotonic(), paths.table(self._spec.pipeline, name)
        result = VacuumResult(table=name, dry_run=self._dry_run)
        opened = self._lake.open(key)
        if opened is None:
            return replace(result, reason="it does not exist yet")
        if (waiting := _waits(self._held.get(name), self._hours)) is not None:
            return replace(result, skipped=True, reason=waiting)
        retention = retention_of(
            self._hours,
            promised_hours=self._spec.maintenance.time_travel_hours,
            log_hours=table_retention_hours(opened),
            # Read again for each table, right before it is vacuumed: others may have taken an hour.
            holds=holds_on(self._catalog, self._lake, self._home, name),
            now=utc_now(),
        )
        if retention.skipped:
            return replace(result, skipped=True, reason=retention.why)
        created = opened.metadata().created_time
        if created is not None and time.time() - created / 1000 < retention.hours * 3600:
            young = f"it was created less than {retention.hours} h ago"
            return replace(result, reason="; ".join(text for text in (young, retention.why) if text))
        done = self._in_force(result, key, retention, version=opened.version())
        return replace(done, seconds=time.monotonic() - started)

    def _in_force(self, result: VacuumResult, key: str, retention: Retention, *, version: int) -> VacuumResult:
        """Vacuum a table with the retention that is in force."""
        mode, why = self._mode_of(result.table)
        vacuum = partial(self._vacuum, key, hours=retention.hours, version=version)
        try:
            try:
                files, size, by = vacuum(mode=mode)
            except LogTooShort:
                why = "its log does not reach back to the last VACUUM"
                if self._mode is not None:
                    return replace(result, skipped=True, reason=f"skipped: {why}, so only mode full does")
                mode = "full"
                files, size, by = vacuum(mode=mode)
        except SparkRequired as reason:
            return replace(result, skipped=True, reason=f"skipped: only Spark can vacuum it: {reason}")
        if mode == "full" and not self._dry_run:
            _note_full(self._home, result.table)
        listed = f"listed: {why}" if mode == "full" and why else ""
        return replace(
            result,
            files=files,
            bytes=size,
            mode=mode,
            retention_hours=retention.hours,
            reason="; ".join(text for text in (retention.why, listed, by) if text),
        )

    def _mode_of(self, name: str) -> tuple[Mode, str]:
        if self._mode is not None:
            return self._mode, ""
        last = _last_full(self._home).get(name)
        if last is None:
            return "full", "it has not been listed yet"
        if utc_now() - last > FULL_EVERY:
            return "full", f"the last time was {last:%Y-%m-%d}"
        return "lite", ""

    def _vacuum(self, key: str, *, mode: Mode, hours: int, version: int) -> tuple[int, int, str]:
        """Files and bytes, and why it took Spark, empty where it did not."""
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
            )
        except SparkRequired as reason:
            if self._spark is None:
                raise
            files, size = vacuum_by_spark(
                self._spark(),
                self._lake,
                key,
                hours=hours,
                full=full,
                dry_run=dry_run,
                version=version,
                metadata=metadata,
            )
            return files, size, f"by Spark: {reason}"
        return files, size, ""


def _waits(held: UncommittedFiles | None, hours: int) -> str | None:
    """Why a table must not be vacuumed: VACUUM would delete files that are yet to be committed as orphans."""
    if (
        held is None
        or held.oldest_prepared_at is None
        or utc_now() - held.oldest_prepared_at <= _waiting_is_safe(hours)
    ):
        return None
    return f"skipped: files that wait to be committed since {held.oldest_prepared_at:%Y-%m-%d %H:%M} would be deleted"


def _waiting_is_safe(hours: int) -> timedelta:
    return timedelta(hours=hours - min(_MARGIN_HOURS, hours / 2))


def _last_full(home: PipelineHome) -> dict[str, datetime]:
    """When the folder of each table was last listed. A record that cannot be read costs a listing."""
    stored = home.objects.get(paths.vacuum_record(home.pipeline))
    try:
        record = json.loads(stored.data)["full"] if stored is not None else {}
        times = {name: parse_iso(text) for name, text in record.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: at for name, at in times.items() if at is not None}


def _note_full(home: PipelineHome, name: str) -> None:
    noted = {table: at.isoformat() for table, at in _last_full(home).items()}
    home.objects.put(paths.vacuum_record(home.pipeline), json.dumps({"full": {**noted, name: iso_now()}}).encode())


def _selected(spec: PipelineSpec, tables: Sequence[str] | None) -> list[str]:
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
            hint=f"Its tables are {', '.join(names)}.",
        )
    return [name for name in names if not tables or name in tables]
