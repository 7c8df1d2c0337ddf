"""Finds gold tables that need a build, and refreshes a table in full in a shadow that is swapped in with one commit.

The shadow is an ordinary gold table and records its input versions, so the next run continues an interrupted refresh
and first brings the shadow up to date. If a build commits to the table first, the swap fails and the shadow is brought
up to date again. The shadow is deleted after the swap is verified. A shadow's number is the application transaction
version of its swap, so the gold table's own log shows which shadows have been swapped in.

A refresh also proves the builds before it: rows that the shadow, built from all rows, and the table hold differently,
although no input of theirs has changed since the table was built, are counted and raise GOLD_DIFFERS.

Pending builds are found in the logs of the inputs, without a JVM: most scheduled builds have nothing to do.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyarrow import fs
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import error_of_table
from deltaworks.control.locks.exclusive import ExclusiveLock, maintenance_lock
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import ERASE, user_metadata
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, FencedError, TransientError
from deltaworks.gold.answer import failed_checks
from deltaworks.gold.build import log_failure, raise_failures, rebuild_gold
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.parts import Part
from deltaworks.gold.pinned_inputs import (
    BUILT_FROM,
    FINGERPRINT,
    LATE_ROWS,
    BuiltFrom,
    PinnedInput,
    pin_inputs,
    read_built_from,
    record_refreshed,
)
from deltaworks.gold.plan import full_plan, select_gold_tables
from deltaworks.gold.row_differences import count_differing_rows
from deltaworks.gold.table_build import GoldTableResult, TableJob, build_table, plan_job, published_rows
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake, arrow_path, remove_folder
from deltaworks.tables.log import TableState, commit_history, state_at
from deltaworks.tables.steps import gold_build_step, gold_refresh_step
from deltaworks.tables.table_swap import TableContent, reasons_against_swap, swap_content, table_content, verify_swap


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadow tables of a gold table. `last_swapped` is the newest number swapped in, 0 before the first."""

    pipeline: str
    table: str
    last_swapped: int
    numbers: tuple[int, ...]

    @property
    def next_key(self) -> str:
        """The key of the next refresh's shadow."""
        return paths.gold_shadow(self.pipeline, self.table, self.last_swapped + 1)

    @property
    def is_in_progress(self) -> bool:
        """Whether a refresh was interrupted before its swap; its shadow is reused."""
        return self.last_swapped + 1 in self.numbers

    @property
    def swapped_key(self) -> str | None:
        """The key of a shadow that was swapped in but not yet deleted."""
        return (
            paths.gold_shadow(self.pipeline, self.table, self.last_swapped)
            if self.last_swapped in self.numbers
            else None
        )

    @property
    def orphaned_keys(self) -> list[str]:
        """Keys of shadows that belong to no refresh, for example of a table that was dropped and recreated."""
        current = (self.last_swapped, self.last_swapped + 1)
        return [
            paths.gold_shadow(self.pipeline, self.table, number) for number in self.numbers if number not in current
        ]


def find_shadows(lake: Lake, pipeline: str, table: str) -> Shadows:
    """Lists the shadows of a gold table."""
    opened = lake.open(paths.table(pipeline, table))
    app_id = gold_refresh_step(pipeline, table, 0).app_id
    last = (opened.transaction_version(app_id) if opened is not None else None) or 0
    folder = arrow_path(lake.storage, paths.gold_shadows(pipeline, table))
    listed = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = (info.base_name for info in listed if info.type is fs.FileType.Directory)
    return Shadows(pipeline, table, last, tuple(sorted(int(name) for name in names if name.isdigit())))


def shadow_state(lake: Lake, objects: ObjectStore, key: str) -> TableState | None:
    """Returns the state of a swapped shadow; None if its deletion has begun."""
    try:
        return state_at(lake, objects, key)
    except ContractError:
        return None


def remove_shadow(lake: Lake, key: str) -> None:
    """Deletes a shadow. Its log is deleted first, so a shadow without a log is one that is being deleted."""
    remove_folder(lake.storage, f"{key}/_delta_log")
    remove_folder(lake.storage, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRefreshResult:
    """The result for one table (in a dry run: the plan).

    - `swapped`: whether the content was replaced, at `version`.
    - `rows_before`, `bytes_before`: size of the table before the refresh; `rows`, `bytes`: size of the shadow. Rows are
      None if the log lacks the count of a file.
    - `shadow`: key of an existing shadow to continue with; `failed_checks`: checks that the shadow fails.
    - `differing_rows`: rows that earlier builds left different from a build of all rows. None if they cannot be
      compared, because the definition or everything has changed since the last build.
    """

    table: str
    dry_run: bool
    swapped: bool = False
    rows_before: int | None = 0
    bytes_before: int = 0
    rows: int | None = 0
    bytes: int = 0
    version: int | None = None
    shadow: str = ""
    built_from: Mapping[str, int]
    failed_checks: tuple[str, ...] = ()
    differing_rows: int | None = None
    seconds: float = 0.0
    reason: str = ""


def plan_refresh(catalog: Catalog, pipeline: str, *, tables: Sequence[str] | None = None) -> list[GoldRefreshResult]:
    """Plans the full refresh of gold tables, one result per table.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
    """
    spec = catalog.pipeline(pipeline)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    results = []
    for table in select_gold_tables(spec, tables):
        key = paths.table(pipeline, table.name)
        before, shadows = content_at(lake, key), find_shadows(lake, pipeline, table.name)
        inputs = pin_inputs(lake, spec, table.reads)
        versions = {name: pinned.version for name, pinned in inputs.items() if pinned.version is not None}
        blockers = reasons_against_swap(lake, objects, key)
        results.append(
            GoldRefreshResult(
                table=table.name,
                dry_run=True,
                rows_before=before.rows,
                bytes_before=before.bytes,
                shadow=shadows.next_key if shadows.is_in_progress else shadows.swapped_key or "",
                built_from=versions,
                reason=f"cannot: {', '.join(blockers)}" if blockers else _reason(lake, shadows),
            )
        )
    return results


def _reason(lake: Lake, shadows: Shadows) -> str:
    if shadows.swapped_key is not None:
        return "already swapped in; would be verified and removed"
    if not shadows.is_in_progress:
        return "would be built, checked and swapped in"
    built = read_built_from(lake, shadows.next_key)
    return (
        f"continues with the shadow of {dict(built.versions)}"
        if built.is_traceable
        else "continues where it was interrupted"
    )


def content_at(lake: Lake, key: str) -> TableContent:
    """Returns row and byte counts of the table; zeros if it does not exist."""
    opened = lake.open(key)
    return TableContent(-1, 0, 0, 0) if opened is None else table_content(opened)


OPERATION = "refresh_gold"
#: Maximum number of attempts to swap while concurrent builds commit. Each attempt has less to do.
MAX_CATCH_UPS = 5


def refresh_gold(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    dry_run: bool = True,
    fault: Callable[[str], None] = lambda point: None,
) -> list[GoldRefreshResult]:
    """Builds gold tables in shadow tables, swaps them in, and rebuilds tables that read them.

    Idempotent: an interrupted run is continued by the next one. Safe during appends and builds; a build that runs
    during the swap fails with a conflict and is retried.

    Args:
        tables: names of gold tables; by default all.
        fault: called by tests with the table's name and `built`, `checked`, `swapped` or `verified`.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, or a build's.
        ContractError: GOLD_SWAP_UNSUPPORTED; GOLD_CHECK_FAILED, after all tables were tried; SWAP_UNVERIFIED; or from
            `refresh_references`.
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST, GOLD_SWAP_OVERTAKEN, COMMIT_CONTENDED.
        TransientError: SWAP_COPY_DAMAGED.
    """
    if dry_run:
        return plan_refresh(catalog, pipeline, tables=tables)
    spec = catalog.pipeline(pipeline)
    selection = select_gold_tables(spec, tables)
    refresh_external_inputs(catalog, pipeline, names=[name for table in selection for name in table.reads])
    results: dict[str, GoldRefreshResult] = {}
    errors: dict[str, DeltaworksError] = {}
    for table in selection:
        blocking = sorted(
            name for name in table.reads if name in errors or (name in results and results[name].failed_checks)
        )
        if blocking:
            reason = f"input {', '.join(blocking)} failed"
            results[table.name] = GoldRefreshResult(
                table=table.name, dry_run=False, built_from={}, reason=reason, failed_checks=(reason,)
            )
            continue
        try:
            results[table.name] = _TableRefresh(spark, catalog, spec, table, fault).run()
        except Exception as error:  # the tables that do not read it are still refreshed
            failure = errors[table.name] = error_of_table(error, table.name)
            if isinstance(failure, TransientError | FencedError):
                raise
            log_failure(pipeline, table.name, failure, error)
    swapped = [name for name, result in results.items() if result.swapped]
    if swapped:
        rebuild_gold(spark, catalog, pipeline, tables=_with_downstream_tables(spec, swapped))
    raise_failures(
        pipeline,
        {name: list(result.failed_checks) for name, result in results.items() if result.failed_checks},
        list(errors.values()),
        tables=len(selection),
    )
    return list(results.values())


class _TableRefresh:
    """Runs the full refresh of one gold table."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        spec: PipelineSpec,
        table: GoldTableSpec,
        fault: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._spec = spec
        self._table = table
        self._key = paths.table(spec.pipeline, table.name)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._fault_hook = fault

    def _fault(self, point: str) -> None:
        self._fault_hook(f"{self._table.name} {point}")

    def run(self) -> GoldRefreshResult:
        """Runs the refresh, or the remaining part of an interrupted one."""
        started = time.monotonic()
        blockers = reasons_against_swap(self._lake, self._objects, self._key)
        if self._lake.open(self._key) is None:
            reason = "the table does not exist yet; the next build creates it"
            return GoldRefreshResult(table=self._table.name, dry_run=False, built_from={}, reason=reason)
        if blockers:
            raise ContractError(
                "GOLD_SWAP_UNSUPPORTED",
                f"{self._key} has {', '.join(blockers)}, so a shadow table cannot be swapped in.",
            )
        folder = paths.gold_shadows(self._spec.pipeline, self._table.name)
        work = f"a refresh of {self._table.name}"
        with maintenance_lock(self._objects, self._spec.pipeline, work=work, folder=folder) as lock:
            shadows = find_shadows(self._lake, self._spec.pipeline, self._table.name)
            for key in shadows.orphaned_keys:
                remove_shadow(self._lake, key)
            if shadows.swapped_key is not None:
                return self._finish_swapped(shadows, shadows.swapped_key, started)
            return self._build_and_swap(shadows, lock, started)

    def _finish_swapped(self, shadows: Shadows, key: str, started: float) -> GoldRefreshResult:
        """Finishes a refresh that was interrupted after its swap."""
        state = shadow_state(self._lake, self._objects, key)
        if state is not None:
            verify_swap(self._lake, self._objects, self._key, state, version=self._swap_version(shadows.last_swapped))
        remove_shadow(self._lake, key)
        return GoldRefreshResult(
            table=self._table.name,
            dry_run=False,
            swapped=True,
            built_from=read_built_from(self._lake, self._key).versions,
            seconds=time.monotonic() - started,
            reason="swapped in by an interrupted run",
        )

    def _build_and_swap(self, shadows: Shadows, lock: ExclusiveLock, started: float) -> GoldRefreshResult:
        key, before = shadows.next_key, content_at(self._lake, self._key)
        for _ in range(MAX_CATCH_UPS):
            job = self._catch_up(key)
            if self._lake.open(key) is None:
                return GoldRefreshResult(table=self._table.name, dry_run=False, built_from={}, reason=job.plan.reason)
            self._fault("built")
            failures = self._failed_checks(key, job)
            lock.check()
            self._fault("checked")
            state = state_at(self._lake, self._objects, key)
            built = read_built_from(self._lake, key)
            differing = self._differing_rows(key, job)
            swapped = not failures and self._swap(state, built, job, shadows.last_swapped + 1, lock)
            if failures or swapped:
                break
        else:
            raise ConcurrencyError(
                "GOLD_SWAP_OVERTAKEN",
                f"Concurrent builds of {self._key} overtook its shadow table {MAX_CATCH_UPS} times.",
            )
        version = self._swap_version(shadows.last_swapped + 1) if swapped else None
        if swapped:
            self._fault("swapped")
            verify_swap(self._lake, self._objects, self._key, state, version=version)
            self._fault("verified")
            remove_shadow(self._lake, key)
            self._report_difference(differing)
        return GoldRefreshResult(
            table=self._table.name,
            dry_run=False,
            swapped=swapped,
            rows_before=before.rows,
            bytes_before=before.bytes,
            rows=state.rows,
            bytes=state.bytes,
            version=version,
            shadow=key if failures else "",
            built_from=built.versions,
            failed_checks=tuple(failures),
            differing_rows=differing,
            seconds=time.monotonic() - started,
            reason=f"not swapped in: {'; '.join(failures)}" if failures else "",
        )

    def _catch_up(self, key: str) -> TableJob:
        """Builds the shadow table, or brings it up to date with the current inputs."""
        inputs = pin_inputs(self._lake, self._spec, self._table.reads)
        job = plan_job(self._catalog, self._spec, self._lake, self._table, inputs, key=key)
        with InputViews(self._spark, self._lake, inputs, self._spec.gold.dedupe) as views:
            build_table(self._spark, self._lake, self._spec, job, views, run_checks=False)
        return job

    def _failed_checks(self, key: str, job: TableJob) -> list[str]:
        """Returns the checks that the complete shadow fails, compared with the published table."""
        if not self._table.checks.has_result_checks:
            return []
        rows = self._spark.read.format("delta").load(self._lake.storage.spark_uri(key))
        everything = full_plan(job.plan.table, "")
        return failed_checks(self._table, rows, published_rows(self._spark, self._lake, self._key, everything))

    def _differing_rows(self, shadow: str, job: TableJob) -> int | None:
        """Returns the number of different rows outside of what the next build of the table would replace anyway."""
        waiting = plan_job(self._catalog, self._spec, self._lake, self._table, job.inputs, key=self._key)
        pending = waiting.plan
        if pending.full or (self._table.affects == "same" and pending.has_work):
            return None
        grain, column = self._table.grain, self._table.partition_by
        changed = pending.output.condition(column, "" if grain is None else grain.column)
        late = frozenset(map(dt.date.fromisoformat, waiting.missing_late_rows))
        if late:
            changed = f"({changed}) OR ({Part(column, late).condition(column, '')})"
        changed = changed.replace("`", '"')
        current, rebuilt = self._lake.open(self._key), self._lake.open(shadow)
        if current is None or rebuilt is None:
            return None
        counted = count_differing_rows(self._lake, current, rebuilt, by=f'"{column}"', excluded=changed)
        return None if counted is None else sum(counted.values())

    def _report_difference(self, differing: int | None) -> None:
        subject = f"{self._spec.pipeline}.{self._table.name}"
        if differing:
            summary = (
                f"{differing:,} rows of {subject} differed from a build of all rows, though none of their inputs had "
                "changed; they have been replaced."
            )
            detail = {"rows": differing}
            raise_alert(self._objects, cause="GOLD_DIFFERS", subject=subject, summary=summary, detail=detail)
        elif differing == 0:
            resolve_alert(self._objects, cause="GOLD_DIFFERS", subject=subject, summary="A build of all rows agrees.")

    def _swap_version(self, ordinal: int) -> int | None:
        """Returns the version of a swap; None if the log no longer has its commit."""
        opened, step = self._lake.open(self._key), gold_refresh_step(self._spec.pipeline, self._table.name, ordinal)
        for commit in () if opened is None else commit_history(self._lake, self._key, newest=opened.version()):
            if (commit.metadata.get("step"), commit.metadata.get("step_version")) == (step.app_id, step.version):
                return commit.version
        return None

    def _swap(self, state: TableState, built: BuiltFrom, job: TableJob, ordinal: int, lock: ExclusiveLock) -> bool:
        """Swaps the shadow in. Returns False if a build overtook it, or an erasure changed its inputs."""
        step = gold_refresh_step(self._spec.pipeline, self._table.name, ordinal)
        metadata = user_metadata(
            pipeline=self._spec.pipeline,
            batch=",".join(f"{name}@{version}" for name, version in built.versions.items()),
            operation=OPERATION,
            step=step.app_id,
            step_version=step.version,
            **{BUILT_FROM: dict(built.versions), FINGERPRINT: built.fingerprint},
            **({LATE_ROWS: dict(built.late_rows)} if built.late_rows else {}),
        )
        commit = FilesCommit(
            step=step,
            # A build that was planned before the swap must not commit after it, since its definition may differ.
            fenced_app_ids=(gold_build_step(self._spec.pipeline, self._table.name, 0).app_id,),
            user_metadata=metadata,
            operation="WRITE",
            parameters={"mode": "Overwrite", "shadow": state.key},
        )

        def refuse_behind() -> None:
            lock.check()
            # An erasure must be checked separately: the current table may never have contained rows of the erased
            # people, if its definition differs.
            if is_behind(built, read_built_from(self._lake, self._key)) or was_erased_since(self._lake, job.inputs):
                raise _ShadowBehindError

        try:
            swap_content(self._lake, self._objects, self._key, state, commit=commit, before_commit=refuse_behind)
        except _ShadowBehindError:
            return False
        return True


class _ShadowBehindError(Exception):
    """Raised if the shadow is out of date: the table was built from newer inputs, or an erasure has purged an input."""


def is_behind(shadow: BuiltFrom, table: BuiltFrom) -> bool:
    """Whether the table contains input versions that its shadow does not. False if the definitions differ."""
    if not table.is_traceable or table.fingerprint != shadow.fingerprint:
        return False
    return any(version > shadow.versions.get(name, -1) for name, version in table.versions.items())


def was_erased_since(lake: Lake, inputs: Mapping[str, PinnedInput]) -> bool:
    """Whether an erasure has removed rows from an input after its pinned version."""
    for pinned in inputs.values():
        opened = None if pinned.version is None else lake.open(pinned.key)
        if opened is None or pinned.version is None:
            continue
        newest = opened.version()
        later = commit_history(lake, pinned.key, newest=newest, limit=max(0, newest - pinned.version))
        if any(commit.metadata.get("operation") == ERASE for commit in later):
            return True
    return False


def _with_downstream_tables(spec: PipelineSpec, names: Sequence[str]) -> list[str]:
    """Returns the named tables and all tables that read them, directly or indirectly."""
    selection = set(names)
    for table in build_order(spec.gold.tables):
        if selection & {*table.reads}:
            selection.add(table.name)
    return sorted(selection)


def pending_gold(
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
    refresh_inputs: bool = True,
) -> list[GoldTableResult]:
    """Plans `rebuild_gold` with the same arguments; `spark_work_count` is 1 for tables with work.

    Records tables without work as up to date, and refreshes reference tables. Idempotent; builds nothing.

    Args:
        refresh_inputs: whether reference tables and tables of models are refreshed before.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
        ContractError, ConcurrencyError: from `refresh_references`.
    """
    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    if refresh_inputs:
        refresh_external_inputs(catalog, pipeline)
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    results: dict[str, GoldTableResult] = {}
    for table in select_gold_tables(spec, tables):
        if pending_inputs := sorted(name for name in table.reads if name in results and results[name].spark_work_count):
            reason = f"input {', '.join(pending_inputs)} needs a build"
            results[table.name] = GoldTableResult(table.name, True, reason, {}, spark_work_count=1)
            continue
        key, pinned = paths.table(pipeline, table.name), pin_inputs(lake, spec, table.reads)
        job = plan_job(catalog, spec, lake, table, pinned, key=key, full=full, dates=dates)
        work = int(job.plan.has_work)
        results[table.name] = GoldTableResult(table.name, True, job.plan.reason, job.built_from, spark_work_count=work)
        if not work and dates is None and job.built_from:
            record_refreshed(home, table.name, late_rows=job.missing_late_rows)
    return list(results.values())
