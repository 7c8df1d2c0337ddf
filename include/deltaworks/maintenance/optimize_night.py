"""The nightly OPTIMIZE of a pipeline: the partitions that need it most, best first, within its minutes.

One run of a pipeline at a time. A table that fails does not stop the others.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import ExclusiveLock
from deltaworks.control.locks.write_turn import TurnFactory, uncontested_turn, write_turn
from deltaworks.control.provenance import current_run
from deltaworks.maintenance.alerts import exclusive_maintenance
from deltaworks.maintenance.choice import Choice, OptimizePolicy
from deltaworks.maintenance.layout import OptimizedTable, layout_of, optimized_tables, selected_tables
from deltaworks.maintenance.night import Night, plan_night
from deltaworks.maintenance.optimize import OptimizeResult, Sessions, TableOptimizer
from deltaworks.maintenance.survey import policy_of, survey
from deltaworks.maintenance.zorder_ledger import ZOrderLedger
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)


class OptimizeRun:
    """One run of a pipeline's rounds, under the maintenance lock: a second one is refused."""

    def __init__(self, spark: Sessions | None, catalog: Catalog, pipeline: str) -> None:
        self._spark = spark
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._ledger = ZOrderLedger(self._lake, self._home)
        self._errors: list[Exception] = []

    def run(
        self,
        *,
        weekly: bool,
        minutes: float | None,
        tables: Sequence[str] | None,
        now: dt.datetime | None,
        policy: OptimizePolicy | None = None,
    ) -> tuple[list[OptimizeResult], Exception | None]:
        """Run the daily round and, on a weekly night, the second one over the rest.

        Returns the results, and the first error of any table.
        """
        upkeep, daily = self._spec.maintenance, policy or policy_of(self._spec)
        rounds = [(daily, upkeep.optimize_minutes if minutes is None else minutes)]
        if weekly:
            rounds.append((daily.weekly(), upkeep.weekly_minutes if minutes is None else minutes))
        selected_tables(self._spec, tables)  # refused before anything is begun
        results: list[OptimizeResult] = []
        with exclusive_maintenance(self._home, work="OPTIMIZE") as lock:
            self._ledger.settle()
            for of_round, length in rounds:
                results += self._round(of_round, length * 60, tables, now or utc_now(), lock)
        return results, next(iter(self._errors), None)

    def _round(
        self,
        policy: OptimizePolicy,
        seconds: float,
        tables: Sequence[str] | None,
        now: dt.datetime,
        lock: ExclusiveLock,
    ) -> list[OptimizeResult]:
        # A retry has the minutes that the earlier tries left.
        left = max(0.0, seconds - self._ledger.seconds_of_run(current_run(), policy.round))
        surveyed = survey(self._lake, self._spec, policy=policy, now=now, tables=tables)
        choices = {choice.table: choice for choice in surveyed}
        planned = surveyed if self._spark is not None else [choice.without_spark() for choice in surveyed]
        night = plan_night(planned, budget_seconds=left, night_seconds=seconds)
        declared = optimized_tables(self._spec)
        until = time.monotonic() + left
        results = {name: _before_rewriting(choice, night, policy) for name, choice in choices.items()}
        if self._spark is None:
            results = {name: replace(result, for_spark=choices[name].for_spark) for name, result in results.items()}
        for name in night.tables():
            table = declared[name]
            optimizer = TableOptimizer(
                self._spark,
                self._lake,
                self._ledger,
                self._spec.pipeline,
                layout_of(self._lake, self._spec.pipeline, table),
                policy=policy,
                turn_of=self._turn_of(table),
                check=lock.check,
                until=until,
            )
            try:
                results[name] = optimizer.run(night.of(name), results[name])
            except Exception as error:  # the other tables are still optimised; the run ends with the first error
                lock.check()
                log.warning("table=%s is left: %s", name, error)
                self._errors.append(error)
                results[name] = replace(results[name], error=str(error).splitlines()[0][:300])
        return list(results.values())

    def _turn_of(self, table: OptimizedTable) -> TurnFactory:
        if not table.merged:
            return uncontested_turn
        return partial(write_turn, self._home.objects, self._home.pipeline, by=current_run())


def _before_rewriting(choice: Choice, night: Night, policy: OptimizePolicy) -> OptimizeResult:
    """The result of a table before any partition is rewritten."""
    put_off, reason = night.put_off_of(choice.table), choice.reason
    if put_off:
        reason += f"; {len(put_off)} put off for lack of time"
    too_large = [candidate for candidate in night.too_large if candidate.table == choice.table]
    if too_large:
        longest = max(candidate.choice.cost_seconds for candidate in too_large) / 60
        reason += f"; one needs {longest:.0f} minutes alone: give the night more"
    return OptimizeResult(table=choice.table, round=policy.round, put_off=len(put_off), reason=reason)


def optimize_tables(
    spark: Sessions | None,
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
    """Run the nightly OPTIMIZE on the tables of a pipeline; returns a result with a reason for every table and round.

    Idempotent, and safe beside the stream. Beside deletes, updates and merges of the same partitions either side may
    meet a conflict; OPTIMIZE retries its partitions a few times.

    Args:
        spark: opens the session, for the first partition that needs it. None leaves these to another run, and the
            results count them (`for_spark`).
        weekly: run a second round after the daily one, over the rest.
        minutes: for each round; by default what the pipeline declares.
        tables: names of tables; by default all that OPTIMIZE maintains.
        policy: of the daily round; by default what the pipeline declares.
        report: called with the results, also where a table failed.

    Raises:
        ConfigError: TABLE_UNKNOWN.
        ConcurrencyError: MAINTENANCE_RUNNING or MAINTENANCE_LOCK_LOST; TURN_NOT_GRANTED, TURN_LOST or a conflict of a
            table, after the others were done.
    """
    run = OptimizeRun(spark, catalog, pipeline)
    results, error = run.run(weekly=weekly, minutes=minutes, tables=tables, now=now, policy=policy)
    report(results)
    if error is not None:
        raise error
    return results
