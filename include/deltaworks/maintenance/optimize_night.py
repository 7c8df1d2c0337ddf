"""The nightly OPTIMIZE of a pipeline: rewrites the most beneficial partitions within the time budget.

Candidates come from the Delta logs and the Z-order ledger, without a JVM. One run per pipeline at a time. A failing
table does not stop the others; the run ends with an error that names all failed tables.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import error_of_table
from deltaworks.control.locks.exclusive import ExclusiveLock
from deltaworks.control.locks.write_turn import TurnFactory, uncontested_turn, write_turn
from deltaworks.control.provenance import current_run
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError, DeltaworksError, combined_error
from deltaworks.maintenance.layout import OptimizedTable, optimized_tables, read_layout, select_tables
from deltaworks.maintenance.optimize import (
    LEFT_TO_SPARK,
    OptimizeResult,
    SessionFactory,
    TableOptimizer,
    describe_engines,
)
from deltaworks.maintenance.partition_choice import (
    OptimizePolicy,
    PartitionChoice,
    TableChoice,
    choose_partitions,
    closes_at,
    forced_choice,
)
from deltaworks.maintenance.table_health.measure import PartitionHealth, table_health
from deltaworks.maintenance.vacuum import exclusive_maintenance
from deltaworks.maintenance.zorder_ledger import LedgerState, ZOrderLedger, read_ledger
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.features import is_unsupported_table
from deltaworks.tables.lake import Lake


def read_policy(spec: PipelineSpec) -> OptimizePolicy:
    """Returns the policy of a pipeline's daily round."""
    upkeep = spec.maintenance
    closed_after = dt.timedelta(hours=upkeep.closed_after_hours)
    return OptimizePolicy(
        target_file_bytes=upkeep.target_file_bytes,
        zorder_from_bytes=upkeep.zorder_from_bytes,
        closed_after=closed_after,
    )


def select_partitions(
    lake: Lake,
    spec: PipelineSpec,
    *,
    policy: OptimizePolicy,
    now: dt.datetime,
    tables: Sequence[str] | None = None,
    ledger_state: LedgerState | None = None,
) -> list[TableChoice]:
    """Returns the partitions to rewrite in each table that OPTIMIZE maintains, with a reason.

    Args:
        tables: names of tables; by default all.
        ledger_state: the Z-order ledger, if already read.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    ledger = read_ledger(lake, spec.pipeline) if ledger_state is None else ledger_state

    def choose(table: OptimizedTable) -> TableChoice:
        try:
            health = table_health(lake, paths.table(spec.pipeline, table.name), history_commits=0)
            layout = read_layout(lake, spec.pipeline, table)
        except ContractError as error:
            if not is_unsupported_table(error):
                raise
            return TableChoice(table=table.name, partitions=(), reason=f"skipped: {error.message}")
        return choose_partitions(health, layout, ledger=ledger.table_state(table.name), now=now, policy=policy)

    return [choose(table) for table in select_tables(spec, tables).values()]


def force_partition(
    lake: Lake, spec: PipelineSpec, table: str, partition: str, *, policy: OptimizePolicy, now: dt.datetime
) -> TableChoice:
    """Returns the rewrite of one partition, regardless of the policy.

    Args:
        partition: as `column=value`, several columns separated by `/`; `all` for a table without partitions.

    Raises:
        ConfigError: TABLE_UNKNOWN; OPTIMIZE_PARTITION_INVALID, the table has no such partition.
        ConcurrencyError: OPTIMIZE_PARTITION_OPEN, a live query or a gold build still writes it.
    """
    (declared,) = select_tables(spec, [table]).values()
    layout = read_layout(lake, spec.pipeline, declared)
    health = table_health(lake, paths.table(spec.pipeline, table), history_commits=0)
    parts = (
        {} if health is None else {_partition_text(part, layout.partition_by): part for part in health.partition_health}
    )
    part = parts.get(partition)
    if part is None:
        largest = sorted(parts, key=lambda name: -parts[name].bytes)[:3]
        raise ConfigError(
            "OPTIMIZE_PARTITION_INVALID",
            f"Table {spec.pipeline}.{table} has no partition {partition}.",
            hint=f"Its largest partitions are {', '.join(largest)}." if largest else "It has no rows yet.",
        )
    end = closes_at(part, layout, policy) if layout.only_closed else None
    if end is not None and now < end:
        raise ConcurrencyError(
            "OPTIMIZE_PARTITION_OPEN",
            f"Partition {partition} of {spec.pipeline}.{table} is still written until {end:%Y-%m-%d %H:%M} UTC.",
            retryable=False,
        )
    ledger = read_ledger(lake, spec.pipeline).table_state(table)
    return forced_choice(part, layout, ledger=ledger, policy=policy)


def _partition_text(health: PartitionHealth, partition_by: Sequence[str]) -> str:
    values = dict(health.partition)
    return "/".join(f"{name}={values[name]}" for name in partition_by) or "all"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition that needs rewriting."""

    table: str
    choice: PartitionChoice

    @property
    def benefit_per_second(self) -> float:
        """Bytes that reads save per second of rewriting."""
        return self.choice.benefit / max(self.choice.cost_seconds, 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """The plan of a night: `selected` partitions, best first, and `deferred` ones.

    Deferred partitions that exceed a full night are also in `too_large`.
    """

    budget_seconds: float
    selected: tuple[Candidate, ...]
    deferred: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]

    @property
    def cost_seconds(self) -> float:
        """Estimated seconds of the selected partitions."""
        return sum(candidate.choice.cost_seconds for candidate in self.selected)

    def tables(self) -> list[str]:
        """Returns the tables with selected partitions, best first."""
        return list(dict.fromkeys(candidate.table for candidate in self.selected))

    def selected_partitions(self, table: str) -> list[PartitionChoice]:
        """Returns the selected partitions of a table, best first."""
        return [candidate.choice for candidate in self.selected if candidate.table == table]

    def deferred_partitions(self, table: str) -> list[PartitionChoice]:
        """Returns the deferred partitions of a table."""
        return [candidate.choice for candidate in self.deferred if candidate.table == table]


def plan_night(
    choices: Sequence[TableChoice], *, budget_seconds: float, night_seconds: float | None = None
) -> NightPlan:
    """Selects partitions within a time budget.

    Args:
        night_seconds: the length of a full night, if the budget is only its remainder.
    """
    candidates = [Candidate(choice.table, partition) for choice in choices for partition in choice.partitions]
    ranked = sorted(
        candidates,
        key=lambda candidate: (-candidate.benefit_per_second, candidate.table, str(candidate.choice.partition)),
    )
    selected = _fit_budget(ranked, budget_seconds)
    single = max((candidate for candidate in ranked if _cost(candidate) <= budget_seconds), key=_benefit, default=None)
    if single is not None and _benefit(single) > sum(map(_benefit, selected)):
        rest = [candidate for candidate in ranked if candidate is not single]
        selected = [single, *_fit_budget(rest, budget_seconds - _cost(single))]
    taken_ids = set(map(id, selected))
    full_seconds = budget_seconds if night_seconds is None else night_seconds
    return NightPlan(
        budget_seconds=budget_seconds,
        selected=tuple(selected),
        deferred=tuple(candidate for candidate in ranked if id(candidate) not in taken_ids),
        too_large=tuple(candidate for candidate in ranked if _cost(candidate) > full_seconds),
    )


def _fit_budget(ranked: Sequence[Candidate], budget_seconds: float) -> list[Candidate]:
    selected, remaining_seconds = [], budget_seconds
    for candidate in ranked:
        if _cost(candidate) <= remaining_seconds:
            selected.append(candidate)
            remaining_seconds -= _cost(candidate)
    return selected


def _cost(candidate: Candidate) -> float:
    return candidate.choice.cost_seconds


def _benefit(candidate: Candidate) -> float:
    return candidate.choice.benefit


def table_error(error: BaseException, *, pipeline: str, table: str) -> DeltaworksError:
    """Returns the error of one table, whose message names it, and the data file if the error is about one."""
    named = error_of_table(error, table)
    if named.condition != "JOB_FAILED":
        return named
    damaged = data_file_error(error, tables=[f"{pipeline}.{table}"])
    return damaged or DeltaworksError("OPTIMIZE_FAILED", named.message, retryable=True)


log = logging.getLogger(__name__)


class OptimizeRun:
    """One run of OPTIMIZE for a pipeline, under the maintenance lock."""

    def __init__(self, spark: SessionFactory | None, catalog: Catalog, pipeline: str) -> None:
        self._spark = spark
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._ledger = ZOrderLedger(self._lake, self._home)
        self._errors: dict[str, DeltaworksError] = {}

    def run(
        self,
        *,
        weekly: bool,
        minutes: float | None,
        tables: Sequence[str] | None,
        now: dt.datetime | None,
        policy: OptimizePolicy | None = None,
    ) -> tuple[list[OptimizeResult], DeltaworksError | None]:
        """Runs the daily round and, if requested, the weekly round.

        Returns the results, and an error that names all failed tables. The weekly round skips these.
        """
        settings, daily = self._spec.maintenance, policy or read_policy(self._spec)
        rounds = [(daily, settings.optimize_minutes if minutes is None else minutes)]
        if weekly:
            rounds.append((daily.weekly(), settings.weekly_minutes if minutes is None else minutes))
        select_tables(self._spec, tables)  # raises for unknown tables before any work
        results: list[OptimizeResult] = []
        with exclusive_maintenance(self._home, work="OPTIMIZE") as lock:
            self._ledger.record_interrupted()
            for of_round, length in rounds:
                results += self._run_round(of_round, length * 60, tables, now or utc_now(), lock)
        return results, self._error({result.table for result in results})

    def run_partition(
        self, table: str, partition: str, *, now: dt.datetime
    ) -> tuple[list[OptimizeResult], DeltaworksError | None]:
        """Rewrites one partition, regardless of the policy. See `force_partition`."""
        select_tables(self._spec, [table])
        with exclusive_maintenance(self._home, work="OPTIMIZE") as lock:
            self._ledger.record_interrupted()
            policy = read_policy(self._spec)
            choice = force_partition(self._lake, self._spec, table, partition, policy=policy, now=now)
            result = OptimizeResult(table=table, round="forced", reason=choice.reason)
            forced = replace(policy, round="forced")
            done = self._optimize(
                table, choice.partitions, result, forced, lock, merge_below_bytes=policy.target_file_bytes
            )
        return [done], self._error({table})

    def _error(self, tables: Collection[str]) -> DeltaworksError | None:
        errors = list(self._errors.values())
        return combined_error("OPTIMIZE_FAILED", errors, tables=len(tables)) if errors else None

    def _run_round(
        self,
        policy: OptimizePolicy,
        seconds: float,
        tables: Sequence[str] | None,
        now: dt.datetime,
        lock: ExclusiveLock,
    ) -> list[OptimizeResult]:
        # A retry continues with the remaining minutes.
        remaining_seconds = max(0.0, seconds - self._ledger.seconds_of_run(current_run(), policy.round))
        all_choices = select_partitions(self._lake, self._spec, policy=policy, now=now, tables=tables)
        choices = {choice.table: choice for choice in all_choices}
        planned = all_choices if self._spark is not None else [choice.without_spark() for choice in all_choices]
        night = plan_night(planned, budget_seconds=remaining_seconds, night_seconds=seconds)
        until = time.monotonic() + remaining_seconds
        results = {name: _initial_result(choice, night, policy) for name, choice in choices.items()}
        if self._spark is None:
            results = {name: _with_spark_work(result, choices[name]) for name, result in results.items()}
        for name in night.tables():
            if name not in self._errors:
                selected = night.selected_partitions(name)
                results[name] = self._optimize(name, selected, results[name], policy, lock, deadline=until)
        return list(results.values())

    def _optimize(
        self,
        name: str,
        selected: Sequence[PartitionChoice],
        result: OptimizeResult,
        policy: OptimizePolicy,
        lock: ExclusiveLock,
        **options: Any,
    ) -> OptimizeResult:
        """Rewrites partitions of one table. An error is part of the result and of `_errors`."""
        table = optimized_tables(self._spec)[name]
        optimizer = TableOptimizer(
            self._spark,
            self._lake,
            self._ledger,
            self._spec.pipeline,
            read_layout(self._lake, self._spec.pipeline, table),
            policy=policy,
            acquire_turn=self._turn_factory(table),
            check=lock.check,
            **options,
        )
        try:
            return optimizer.run(selected, result)
        except Exception as error:  # the remaining tables are still optimized
            lock.check()
            failure = table_error(error, pipeline=self._spec.pipeline, table=name)
            log.warning("table=%s failed: %s", name, failure)
            log.debug("table=%s", name, exc_info=error)
            self._errors[name] = failure
            return replace(optimizer.result, error=f"[{failure.condition}] {failure.message}")

    def _turn_factory(self, table: OptimizedTable) -> TurnFactory:
        if not table.needs_write_turn:
            return uncontested_turn
        return partial(write_turn, self._home.objects, self._home.pipeline, by=current_run())


def _initial_result(choice: TableChoice, night: NightPlan, policy: OptimizePolicy) -> OptimizeResult:
    """Returns the result of a table before rewriting."""
    deferred, reason = night.deferred_partitions(choice.table), choice.reason
    if deferred:
        reason += f"; {len(deferred)} deferred for lack of time"
    too_large = [candidate for candidate in night.too_large if candidate.table == choice.table]
    if too_large:
        longest = max(candidate.choice.cost_seconds for candidate in too_large) / 60
        reason += f"; one partition needs {longest:.0f} minutes: increase optimize_minutes"
    return OptimizeResult(table=choice.table, round=policy.round, deferred=len(deferred), reason=reason)


def _with_spark_work(result: OptimizeResult, choice: TableChoice) -> OptimizeResult:
    """Returns the result of a run without Spark, which leaves the partitions that need it."""
    reasons = Counter(partition.spark_reason for partition in choice.partitions if partition.spark_reason)
    work = Counter({(LEFT_TO_SPARK, f"({reason})"): count for reason, count in reasons.items()})
    return replace(result, spark_work_count=choice.spark_work_count, engine=describe_engines(work))


def optimize_tables(
    spark: SessionFactory | None,
    catalog: Catalog,
    pipeline: str,
    *,
    weekly: bool = False,
    minutes: float | None = None,
    tables: Sequence[str] | None = None,
    now: dt.datetime | None = None,
    policy: OptimizePolicy | None = None,
    report: Callable[[list[OptimizeResult]], None] = lambda results: None,
) -> list[OptimizeResult]:
    """Runs the nightly OPTIMIZE of a pipeline. Returns a result with a reason for every table and round.

    Idempotent, and safe while the stream runs. Conflicts with deletes, updates and merges of the same partitions are
    retried a few times.

    Args:
        spark: opens the session on first use. None leaves partitions that need Spark to another run
            (`spark_work_count`).
        weekly: run the weekly round after the daily one.
        minutes: time budget per round; by default as declared.
        tables: names of tables; by default all that OPTIMIZE maintains.
        policy: policy of the daily round; by default as declared.
        report: called with the results, also after failures.

    Raises:
        ConfigError: TABLE_UNKNOWN.
        ConcurrencyError: MAINTENANCE_RUNNING or MAINTENANCE_LOCK_LOST.
        DeltaworksError: after all tables are done, the error of the table that failed, such as DATA_FILE_MISSING or
            TURN_NOT_GRANTED; or OPTIMIZE_FAILED, which names all failed tables.
    """
    run = OptimizeRun(spark, catalog, pipeline)
    results, error = run.run(weekly=weekly, minutes=minutes, tables=tables, now=now, policy=policy)
    report(results)
    if error is not None:
        raise error
    return results


def optimize_partition(
    spark: SessionFactory | None,
    catalog: Catalog,
    pipeline: str,
    table: str,
    partition: str,
    *,
    report: Callable[[list[OptimizeResult]], None] = lambda results: None,
) -> list[OptimizeResult]:
    """Rewrites one partition of a table, regardless of the policy: Z-ordered if the table declares an order, otherwise
    with its files merged.

    Args:
        partition: as `column=value`, several columns separated by `/`; `all` for a table without partitions.

    Raises:
        ConfigError: TABLE_UNKNOWN, OPTIMIZE_PARTITION_INVALID.
        ConcurrencyError: OPTIMIZE_PARTITION_OPEN.
    """
    results, error = OptimizeRun(spark, catalog, pipeline).run_partition(table, partition, now=utc_now())
    report(results)
    if error is not None:
        raise error
    return results
