"""Full refresh of a gold table: built in a shadow table, checked, and swapped in with one commit.

The shadow is an ordinary gold table and records its input versions, so the next run continues an interrupted refresh
and first brings the shadow up to date. If a build commits to the table first, the swap fails and the shadow is brought
up to date again. The shadow is deleted after the swap is verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.locks.exclusive import ExclusiveLock, maintenance_lock
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import ERASE, user_metadata
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.gold.answer import failed_checks, raise_failed_checks
from deltaworks.gold.build import rebuild_gold, select_gold_tables
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.inputs import (
    BUILT_FROM,
    FINGERPRINT,
    BuiltFrom,
    PinnedInput,
    pin_inputs,
    read_built_from,
)
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.plan import full_plan
from deltaworks.gold.shadow import (
    GoldRefreshResult,
    Shadows,
    content_at,
    find_shadows,
    plan_refresh,
    remove_shadow,
    shadow_state,
)
from deltaworks.gold.table_build import TableJob, build_table, plan_job, published_rows
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, commit_history, state_at
from deltaworks.tables.steps import gold_build_step, gold_refresh_step
from deltaworks.tables.table_swap import reasons_against_swap, swap_content, verify_swap

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
    for table in selection:
        blocking = sorted(name for name in table.reads if name in results and results[name].failed_checks)
        if blocking:
            reason = f"input {', '.join(blocking)} failed its checks"
            results[table.name] = GoldRefreshResult(
                table=table.name, dry_run=False, built_from={}, reason=reason, failed_checks=(reason,)
            )
            continue
        results[table.name] = _TableRefresh(spark, catalog, spec, table, fault).run()
    swapped = [name for name, result in results.items() if result.swapped]
    if swapped:
        rebuild_gold(spark, catalog, pipeline, tables=_with_downstream_tables(spec, swapped))
    raise_failed_checks(
        pipeline, {name: list(result.failed_checks) for name, result in results.items() if result.failed_checks}
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
