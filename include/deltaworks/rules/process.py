"""The process that evaluates the rules of all pipelines. A lease allows only one at a time; needs no JVM.

Checks every few seconds which minutes are complete, and reloads declarations when a file changes. Transient failures
are retried; missed minutes are evaluated later. If a round hangs, the heartbeat stops too.

Each pipeline's rules are evaluated over tables that are opened once, inhibiting rules first.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from graphlib import TopologicalSorter

import duckdb

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import DATA_FILE_CONDITIONS
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError
from deltaworks.rules.evaluation import RuleEvaluation
from deltaworks.rules.inputs import RuleTables, connect_tables, input_freshness
from deltaworks.rules.messages import alert_event
from deltaworks.rules.open_alerts import OpenAlerts
from deltaworks.rules.rule_alerts import RuleAlerts, deliver
from deltaworks.rules.rule_evaluator import RuleEvaluator
from deltaworks.rules.rule_query import broken_rule_error, rule_query
from deltaworks.rules.stored_state import rule_states
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.notice_delay import EVALUATION_INTERVAL_SECONDS
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import DeclarationState, declaration_state
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)


class PipelineEvaluator:
    """Evaluates the rules of one pipeline. Not thread-safe."""

    def __init__(self, catalog: Catalog, pipeline: str, objects: ObjectStore, tables: RuleTables) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._objects = objects
        self._tables = tables
        self._parser = duckdb.connect(":memory:")
        self._rules = {rule.name: rule for rule in self._spec.rules}
        self._evaluators: dict[str, RuleEvaluator] = {}
        self._query_problems: dict[str, str] = {}
        for rule in inhibitors_first(self._spec.rules):
            self._add_evaluator(rule)

    @property
    def evaluators(self) -> Iterable[RuleEvaluator]:
        """The rule evaluators, in evaluation order."""
        return self._evaluators.values()

    def close(self) -> None:
        """Closes open connections."""
        self._parser.close()

    def evaluate(self, now: dt.datetime, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Evaluates every rule up to its newest complete data. Returns the number of rules that advanced.

        A failing rule raises its own alert and does not affect others.

        Raises:
            TransientError: the lake or the control storage is unreachable.
        """
        evaluated = 0
        with _Connections(self._catalog, self._spec.pipeline, self._tables, [*self._rules.values()]) as connections:
            for evaluator in self._evaluators.values():
                if should_stop():
                    break
                try:
                    evaluated += self._evaluate_rule(evaluator, connections, now)
                except ConcurrencyError as error:
                    _LOGGER.info("%s", error)
        return evaluated

    def resolve_removed_rules(self) -> None:
        """Resolves the alerts of rules that are no longer declared, and deletes their state."""
        for state in rule_states(self._objects, self._spec.pipeline):
            if state.rule in self._rules:
                continue
            placeholder = RuleSpec.model_validate(
                {"name": state.rule, "reads": ["gone"], "sql": "", "labels": state.labels, "fire": {"above": 0}}
            )
            decisions = OpenAlerts(self._spec.pipeline, placeholder, state.open_alerts()).resolve_all(0)
            evaluation = RuleEvaluation(placeholder)
            events = [alert_event(decision, evaluation, reads=(), data_until="") for decision in decisions]
            events += RuleAlerts(self._spec.pipeline, placeholder, dict(state.rule_alerts), {}).resolve_all()
            deliver(self._objects, [*state.outbox, *events])
            self._objects.delete(paths.rule_state(self._spec.pipeline, state.rule))

    def _add_evaluator(self, rule: RuleSpec) -> None:
        file = self._catalog.folder(self._spec.pipeline) / rule.sql
        try:
            query = rule_query(rule, file.read_text(encoding="utf-8"), self._parser)
        except (OSError, UnicodeDecodeError) as error:
            self._query_problems[rule.name] = broken_rule_error(rule, str(error)).message
            query = rule_query(rule, "SELECT 1", self._parser)
        except ContractError as error:
            self._query_problems[rule.name] = error.message
            query = rule_query(rule, "SELECT 1", self._parser)
        self._evaluators[rule.name] = RuleEvaluator(self._objects, self._spec.pipeline, query)

    def _evaluate_rule(self, evaluator: RuleEvaluator, connections: _Connections, now: dt.datetime) -> bool:
        rule = evaluator.rule
        if rule.name not in self._query_problems and not evaluator.has_settled_minute(now):
            evaluator.is_current = evaluator.has_known_state
            evaluator.deliver()
            return False
        evaluator.is_current = False
        freshness = input_freshness(self._spec, rule, self._tables, now)
        if rule.name in self._query_problems:
            evaluator.report_not_evaluated(freshness, now, problem=self._query_problems[rule.name])
            return False
        inhibitors = [self._evaluators[name] for name in rule.inhibited_by]
        due = (
            evaluator.due_minutes(freshness, now, inhibitors_until=_evaluated_until(inhibitors))
            if not freshness.missing
            else None
        )
        if due is None:
            evaluator.report_not_evaluated(freshness, now)
            evaluator.is_current = evaluator.has_known_state
            return False
        try:
            connection = connections.connection_for(rule)
            evaluator.evaluate(connection, due, freshness, now, inhibitors)
            evaluator.build_next_baseline(connection, now)
        except ContractError as error:
            if error.condition not in ("RULE_BROKEN", *DATA_FILE_CONDITIONS):
                raise
            repair = error.hint if error.condition in DATA_FILE_CONDITIONS else ""
            evaluator.report_not_evaluated(freshness, now, problem=error.message, repair=repair)
            return False
        evaluator.is_current = True
        return True


class _Connections:
    """DuckDB connections: a single one for all rules, or one per rule if a table cannot be opened."""

    def __init__(self, catalog: Catalog, pipeline: str, tables: RuleTables, rules: list[RuleSpec]) -> None:
        self._catalog, self._spec, self._tables, self._rules = catalog, catalog.pipeline(pipeline), tables, rules
        self._exit_stack = ExitStack()
        self._shared: duckdb.DuckDBPyConnection | None = None
        self._is_per_rule = False

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def connection_for(self, rule: RuleSpec) -> duckdb.DuckDBPyConnection:
        """Returns a connection that can read a rule's tables.

        Raises:
            ContractError: RULE_BROKEN, one of its tables cannot be opened.
        """
        if self._shared is None and not self._is_per_rule:
            try:
                self._shared = self._connect(self._rules)
            # If a table of another rule cannot be opened, each rule gets a separate connection.
            except duckdb.Error:
                self._is_per_rule = True
        if self._shared is not None:
            return self._shared
        try:
            return self._connect([rule])
        except duckdb.Error as error:
            raise broken_rule_error(rule, str(error)) from error

    def _connect(self, rules: list[RuleSpec]) -> duckdb.DuckDBPyConnection:
        return self._exit_stack.enter_context(connect_tables(self._catalog, self._spec, rules, self._tables.open))


def inhibitors_first(rules: Iterable[RuleSpec]) -> list[RuleSpec]:
    """Returns the rules, with each rule after the rules that inhibit it."""
    declared = {rule.name: rule for rule in rules}
    sorter = TopologicalSorter({name: rule.inhibited_by for name, rule in declared.items()})
    return [declared[name] for name in sorter.static_order() if name in declared]


def _evaluated_until(inhibitors: list[RuleEvaluator]) -> int | None:
    """Returns the minute up to which all inhibiting rules are evaluated.

    Ignores inhibiting rules without current data, so that they do not delay others.
    """
    minutes = [inhibitor.last_minute for inhibitor in inhibitors if inhibitor.is_current]
    return min((minute for minute in minutes if minute is not None), default=None)


LEASE_SECONDS = 30.0
MAX_RUN_SECONDS = 14_400.0
#: Stall timeout, longer than any single step: baseline queries are interrupted after 300 s, rule queries after 30 s.
STALL_SECONDS = 420.0
#: If transient failures last longer, the process ends, so that its supervisor notices.
_MAX_FAILING_SECONDS = 300.0


@dataclass(slots=True)
class EvaluationCounts:
    """Counts of a run: completed rounds and evaluated rules."""

    rounds: int = 0
    evaluated: int = 0


class RuleProcess:
    """One run of the rule process. `run` returns at its time limit or when a stop is requested, and raises on failure.

    Args:
        on_tick: called every few seconds, so that a stall is detected.
    """

    def __init__(self, catalog: Catalog, *, on_tick: Callable[[], None] = lambda: None) -> None:
        self._catalog, self._on_tick = catalog, on_tick
        self._objects = open_objects(catalog.environment.lake)
        self._leased_process = LeasedProcess(
            self._objects,
            paths.rules_control(),
            name=paths.RULES_PROCESS,
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=MAX_RUN_SECONDS,
            trigger_seconds=EVALUATION_INTERVAL_SECONDS,
            stall_seconds=STALL_SECONDS,
        )
        self._evaluators: dict[str, PipelineEvaluator] = {}
        self._counts = EvaluationCounts()

    def stop(self, *, immediately: bool = False) -> None:
        """Requests a stop after the current rule. Callable from a signal handler."""
        self._leased_process.stop()

    def run(self) -> EvaluationCounts:
        """Evaluates rules until the run ends.

        Raises:
            ConcurrencyError: LEASE_HELD, another process is running.
            FencedError: LEASE_LOST, a successor has taken over. Writes are conditional, so none of its writes is
                overwritten.
            TransientError: the lake was unreachable for minutes.
        """
        with self._leased_process.hold_lease(on_tick=self._on_tick):
            self._evaluate_until_end(self._catalog)
        return self._counts

    def _evaluate_until_end(self, catalog: Catalog) -> None:
        failing_since: float | None = None
        tables = RuleTables(Lake(catalog.environment.lake))
        loaded: DeclarationState | None = None
        while not self._leased_process.should_stop:
            try:
                state = declaration_state(catalog.root)
                if state != loaded:
                    catalog, loaded = load_catalog(skip_invalid=True), state
                    self._load_evaluators(catalog, self._objects, tables)
                self._evaluate_all(tables)
                failing_since = None
                self._leased_process.heartbeat.update(state="idle")
            except DeltaworksError as error:
                failing_since = failing_since or time.monotonic()
                if not error.retryable or time.monotonic() - failing_since > _MAX_FAILING_SECONDS:
                    raise
                _LOGGER.warning("Retrying: %s", error)
            self._leased_process.pause(EVALUATION_INTERVAL_SECONDS)

    def _load_evaluators(self, catalog: Catalog, objects: ObjectStore, tables: RuleTables) -> None:
        """Loads the declared rules. A pipeline with an invalid declaration keeps its previous rules."""
        for name in [name for name in self._evaluators if (("pipeline", name) not in catalog.broken)]:
            self._evaluators.pop(name).close()
        for name, spec in catalog.pipelines.items():
            self._leased_process.record_progress()
            evaluator = PipelineEvaluator(catalog, name, objects, tables)
            evaluator.resolve_removed_rules()
            if spec.rules:
                self._evaluators[name] = evaluator
            else:
                evaluator.close()

    def _evaluate_all(self, tables: RuleTables) -> None:
        tables.mark_stale()
        for name, evaluator in self._evaluators.items():
            if self._should_stop():
                return
            try:
                self._counts.evaluated += evaluator.evaluate(utc_now(), should_stop=self._should_stop)
            except DeltaworksError:
                raise
            # A damaged table or a bug in one pipeline must not stop the evaluation of others.
            except Exception:
                _LOGGER.exception("The rules of %s could not be evaluated", name)
        self._counts.rounds += 1

    def _should_stop(self) -> bool:
        """Returns whether a stop is requested, and records progress.

        It is checked before every rule, because a round over hundreds of rules takes long.
        """
        self._leased_process.record_progress()
        return self._leased_process.stopping.is_set()
