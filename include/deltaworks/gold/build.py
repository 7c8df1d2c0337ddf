"""Rebuilds gold tables: only the parts their inputs changed, and nothing where nothing changed.

Each table is written in one commit that names the versions it was built from, so a job that dies is simply run
again. Appends to the inputs continue meanwhile: a build reads the versions it has pinned.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.gold.answer import raise_failed_checks
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.inputs import PinnedInput, pin_inputs, record_refreshed
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.predictions import update_prediction_alerts
from deltaworks.gold.table_build import GoldTableResult, TableJob, build_table, plan_job
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changed_hours import changed_hours
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
#: How often a build goes on behind others that overtake it.
_MAX_REPLANS = 3
_OVERTAKEN_REASON = "another build of it has landed meanwhile; the next one goes on from there"


@dataclass(frozen=True, slots=True)
class GoldBuildResult:
    """What became of a pipeline's gold tables, in the order they were built: each after those it reads."""

    pipeline: str
    tables: tuple[GoldTableResult, ...]
    seconds: float

    def table(self, name: str) -> GoldTableResult:
        """The result of one table.

        Raises:
            KeyError: it was not among those asked for.
        """
        return {result.table: result for result in self.tables}[name]


class BuildListener(Protocol):
    """Who has tables built for it time and again: what fails is told to it, and the other tables are built."""

    def skip_reason(self, job: TableJob) -> str:
        """Why a table is not built by this one; empty where it is."""
        ...

    def on_built(self, job: TableJob, result: GoldTableResult) -> None:
        """A table was built, or is up to date."""
        ...

    def on_failed(self, table: GoldTableSpec, error: Exception) -> None:
        """A table could not be built."""
        ...


def rebuild_gold(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
    listener: BuildListener | None = None,
) -> GoldBuildResult:
    """Bring gold tables up to date with their inputs as they are now, reference tables with their files first.

    Idempotent; safe beside appends to the inputs. Of two builds of one table at once, one lands and one fails; of a
    table that its stream keeps fresh, the other is skipped.

    Args:
        tables: names of gold tables; by default all of the pipeline.
        full: rebuild whole tables, whatever changed.
        dates: rebuild these dates of the gold tables, whatever changed, and no others. What changed elsewhere is left
            to the next build without dates, which sees it as before.
        watch: is told what became of each table, and then nothing is raised that is of one table alone.

    A table is built after those it reads. One whose answer breaks its checks is not published, nor are those that read
    it; the others are.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE,
            GOLD_PARTITION_NOT_TEXT, GOLD_GRAIN_NOT_TIME, GOLD_GRAIN_OUTSIDE_DATE or GOLD_CHECK_INVALID.
        ContractError: GOLD_CHECK_FAILED, after all tables were tried; REFERENCE_UNREADABLE or REFERENCE_INVALID.
        ConcurrencyError: GOLD_OVERTAKEN, REFERENCE_CONTENDED, or a conflict of Delta's.
    """
    started = time.monotonic()
    spec = catalog.pipeline(pipeline)
    selection = select_gold_tables(spec, tables)
    refresh_external_inputs(catalog, pipeline, names=[name for table in selection for name in table.reads])
    run = _BuildRun(spark, catalog, spec, selection, full=full, dates=dates, listener=listener)
    results = run.build_tables()
    update_prediction_alerts(
        catalog, pipeline, tables=[result.table for result in results.values() if result.checks_passed]
    )
    if listener is None:
        raise_failed_checks(
            pipeline, {name: list(result.failed_checks) for name, result in results.items() if result.failed_checks}
        )
    return GoldBuildResult(pipeline, tuple(results.values()), time.monotonic() - started)


class _BuildRun:
    """The builds of some tables at once: inputs are pinned, and copies of events looked up, for all of them."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        spec: PipelineSpec,
        selection: Sequence[GoldTableSpec],
        *,
        full: bool,
        dates: frozenset[dt.date] | None,
        listener: BuildListener | None,
    ) -> None:
        self._spark, self._catalog, self._spec, self._selection = spark, catalog, spec, selection
        self._full, self._dates, self._listener = full, dates, listener
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        self._gold = {table.name for table in spec.gold.tables}
        self._results: dict[str, GoldTableResult] = {}
        # Tables of one look were mostly built from the same versions last time.
        self._read_changes = cache(changed_hours)

    def build_tables(self) -> dict[str, GoldTableResult]:
        """What became of each table, in order; of one that was left or has failed, nothing."""
        reads = {name for table in self._selection for name in table.reads}
        inputs = pin_inputs(self._lake, self._spec, sorted(reads - self._gold))
        jobs: dict[str, TableJob | None] = {
            table.name: self._plan_table(table, inputs) for table in self._selection if not self._gold & {*table.reads}
        }
        with InputViews(self._spark, self._lake, inputs, self._spec.gold.dedupe) as views:
            views.prepare([(job.plan, job.sql) for job in jobs.values() if job is not None and job.plan.has_work])
            for table in self._selection:
                if (held_back := _blocked_result(table, self._results)) is not None:
                    self._results[table.name] = held_back
                    continue
                if table.name not in jobs:
                    # Gold tables it reads are taken as this very build has left them.
                    own = inputs | pin_inputs(
                        self._lake, self._spec, [name for name in table.reads if name in self._gold]
                    )
                    views.add_inputs(own)
                    jobs[table.name] = self._plan_table(table, own)
                if (job := jobs[table.name]) is not None:
                    self._build_table(job, views)
        return self._results

    def _plan_table(self, table: GoldTableSpec, pinned: Mapping[str, PinnedInput]) -> TableJob | None:
        """What building a table takes; None where the watch leaves it, or was told why that is not known."""
        key = paths.table(self._spec.pipeline, table.name)
        try:
            job = plan_job(
                self._catalog,
                self._spec,
                self._lake,
                table,
                pinned,
                key=key,
                full=self._full,
                dates=self._dates,
                read_changes=self._read_changes,
            )
        except Exception as error:
            if self._listener is None:
                raise
            self._listener.on_failed(table, error)
            return None
        if self._listener is not None and (reason := self._listener.skip_reason(job)):
            log.warning("pipeline=%s table=%s is not built: %s", self._spec.pipeline, table.name, reason)
            return None
        return job

    def _build_table(self, job: TableJob, views: InputViews) -> None:
        name, requested = job.plan.table.name, self._full or self._dates is not None
        try:
            result = _build_or_skip(self._spark, self._lake, self._spec, job, views, requested=requested)
            for _ in range(_MAX_REPLANS):
                if result.reason != _OVERTAKEN_REASON or self._listener is not None:
                    break
                # Whoever was faster may have read less: what was pinned is in the table when this ends.
                job = self._plan_table(job.plan.table, job.inputs) or job
                result = _build_or_skip(self._spark, self._lake, self._spec, job, views, requested=requested)
            if result.failed_checks and self._listener is not None:
                self._results[name] = result
                raise_failed_checks(self._spec.pipeline, {name: list(result.failed_checks)})
        except Exception as error:
            if self._listener is None:
                raise
            self._listener.on_failed(job.plan.table, error)
            return
        self._results[name] = result
        if self._dates is None and result.checks_passed and job.built_from and result.reason != _OVERTAKEN_REASON:
            record_refreshed(self._home, name)
        if self._listener is not None:
            self._listener.on_built(job, result)


def _blocked_result(table: GoldTableSpec, results: Mapping[str, GoldTableResult]) -> GoldTableResult | None:
    """The result of a table that is not built, since what it reads broke its checks; None where it can be."""
    held = sorted(name for name in table.reads if name in results and not results[name].checks_passed)
    if not held:
        return None
    return GoldTableResult(
        table.name, True, f"{', '.join(held)}, which it reads, broke its checks", {}, checks_passed=False
    )


def _build_or_skip(
    spark: SparkSession, lake: Lake, spec: PipelineSpec, job: TableJob, views: InputViews, *, requested: bool
) -> GoldTableResult:
    """The result of a build; one that was skipped where a table that the stream keeps fresh was built by it meanwhile.

    Args:
        requested: what is built was asked for whatever changed: then somebody has to know that it was not.
    """
    try:
        return build_table(spark, lake, spec, job, views)
    except Exception as error:
        own = as_deltaworks_error(error)
        if requested or job.plan.table.refresh_seconds is None or not isinstance(own, ConcurrencyError):
            raise
        log.warning("pipeline=%s table=%s was built by another builder: %s", spec.pipeline, job.plan.table.name, own)
        return GoldTableResult(job.plan.table.name, True, _OVERTAKEN_REASON, job.built_from)


def select_gold_tables(spec: PipelineSpec, tables: Sequence[str] | None) -> list[GoldTableSpec]:
    """The gold tables called `tables`, or all, each after those it reads.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
    """
    declared = {table.name: table for table in spec.gold.tables}
    unknown = sorted(set(tables or ()) - set(declared))
    if unknown:
        raise ConfigError(
            "GOLD_TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no gold table {', '.join(unknown)}.",
            hint=f"Its gold tables are {', '.join(declared) or 'none'}.",
        )
    return [table for table in build_order(spec.gold.tables) if not tables or table.name in tables]
