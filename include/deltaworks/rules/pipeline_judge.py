"""Judges the rules of one pipeline, each after those that could hold it back, over tables that are opened once."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from graphlib import TopologicalSorter

import duckdb

from deltaworks.control import rule_paths
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.rules.conditions import Conditions
from deltaworks.rules.delivery import deliver
from deltaworks.rules.inputs import OpenTables, connected, reach_of
from deltaworks.rules.judge import Judging
from deltaworks.rules.observing import broken, rule_query
from deltaworks.rules.rule_judge import RuleJudge
from deltaworks.rules.states import rule_states
from deltaworks.rules.telling import Tellings
from deltaworks.rules.wording import telling_record
from deltaworks.specs.business_alert import RuleSpec
from deltaworks.specs.catalog import Catalog

_LOGGER = logging.getLogger(__name__)


class PipelineJudge:
    """The rules of one pipeline as it is declared. Used by one thread."""

    def __init__(self, catalog: Catalog, pipeline: str, objects: ObjectStore, tables: OpenTables) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._objects = objects
        self._tables = tables
        self._parser = duckdb.connect(":memory:")
        self._rules = {rule.name: rule for rule in self._spec.alerts}
        self._judges: dict[str, RuleJudge] = {}
        self._wrong: dict[str, str] = {}
        for rule in ordered(self._spec.alerts):
            self._make(rule)

    @property
    def judges(self) -> Iterable[RuleJudge]:
        """What judges each rule, in the order in which they are judged."""
        return self._judges.values()

    def close(self) -> None:
        """Let go of what is open."""
        self._parser.close()

    def look(self, now: dt.datetime, *, has_to_end: Callable[[], bool] = lambda: False) -> int:
        """Judge every rule as far as its data reach; how many were judged further. A rule that fails says so itself
        and stands in the way of no other.

        Raises:
            TransientError: the lake or the control area does not answer.
        """
        judged = 0
        with _Connections(self._catalog, self._spec.pipeline, self._tables, [*self._rules.values()]) as connections:
            for judge in self._judges.values():
                if has_to_end():
                    break
                try:
                    judged += self._judge(judge, connections, now)
                except ConcurrencyError as error:
                    _LOGGER.info("%s", error)
        return judged

    def end_what_is_gone(self) -> None:
        """End the alerts of rules that are declared no more, and forget them."""
        for state in rule_states(self._objects, self._spec.pipeline):
            if state.rule in self._rules:
                continue
            stand_in = RuleSpec.model_validate(
                {"name": state.rule, "reads": ["gone"], "sql": "", "labels": state.labels, "fire": {"above": 0}}
            )
            tellings = Tellings(self._spec.pipeline, stand_in, state.open_alerts()).end_all(0)
            blank = Judging(stand_in)
            tellings_left = [telling_record(telling, blank, reads=(), data_to="") for telling in tellings]
            tellings_left += Conditions(self._spec.pipeline, stand_in, dict(state.conditions)).end_all()
            deliver(self._objects, [*state.outbox, *tellings_left])
            self._objects.delete(rule_paths.rule_state(self._spec.pipeline, state.rule))

    def _make(self, rule: RuleSpec) -> None:
        file = self._catalog.folder(self._spec.pipeline) / rule.sql
        try:
            query = rule_query(rule, file.read_text(encoding="utf-8"), self._parser)
        except (OSError, UnicodeDecodeError) as error:
            self._wrong[rule.name] = broken(rule, str(error)).message
            query = rule_query(rule, "SELECT 1", self._parser)
        except ContractError as error:
            self._wrong[rule.name] = error.message
            query = rule_query(rule, "SELECT 1", self._parser)
        self._judges[rule.name] = RuleJudge(self._objects, self._spec.pipeline, query)

    def _judge(self, judge: RuleJudge, connections: _Connections, now: dt.datetime) -> bool:
        rule = judge.rule
        judge.is_current = False
        reach = reach_of(self._spec, rule, self._tables)
        if rule.name in self._wrong:
            judge.stand_by(reach, now, problem=self._wrong[rule.name])
            return False
        holders = [self._judges[name] for name in rule.unless]
        due = judge.due(reach, now, no_further=_judged_for(holders)) if not reach.absent else None
        if due is None:
            judge.stand_by(reach, now)
            judge.is_current = bool(judge.state.last_minute) and "RULE_UNKNOWN" not in judge.state.conditions
            return False
        try:
            connection = connections.of(rule)
            judge.judge(connection, due, reach, now, holders)
            judge.prepare_tomorrow(connection, now)
        except ContractError as error:
            if error.condition != "RULE_BROKEN":
                raise
            judge.stand_by(reach, now, problem=error.message)
            return False
        judge.is_current = True
        return True


class _Connections:
    """One connection for all rules, which opens their tables once; where that fails, one a rule."""

    def __init__(self, catalog: Catalog, pipeline: str, tables: OpenTables, rules: list[RuleSpec]) -> None:
        self._catalog, self._spec, self._tables, self._rules = catalog, catalog.pipeline(pipeline), tables, rules
        self._open = ExitStack()
        self._shared: duckdb.DuckDBPyConnection | None = None
        self._apart = False

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def of(self, rule: RuleSpec) -> duckdb.DuckDBPyConnection:
        """A connection that reads what the rule reads.

        Raises:
            ContractError: RULE_BROKEN, a table of it cannot be opened.
        """
        if self._shared is None and not self._apart:
            try:
                self._shared = self._connected(self._rules)
            # A table of another rule that cannot be opened.
            except duckdb.Error:
                self._apart = True
        if self._shared is not None:
            return self._shared
        try:
            return self._connected([rule])
        except duckdb.Error as error:
            raise broken(rule, str(error)) from error

    def _connected(self, rules: list[RuleSpec]) -> duckdb.DuckDBPyConnection:
        return self._open.enter_context(connected(self._catalog, self._spec, rules, self._tables.opened))


def ordered(rules: Iterable[RuleSpec]) -> list[RuleSpec]:
    """The rules, each after those that could hold it back."""
    declared = {rule.name: rule for rule in rules}
    sorter = TopologicalSorter({name: rule.unless for name, rule in declared.items()})
    return [declared[name] for name in sorter.static_order() if name in declared]


def _judged_for(holders: list[RuleJudge]) -> int | None:
    """The minute up to which it is known whether one of these fires; those whose data end hold nobody up."""
    minutes = [judge.last_minute for judge in holders if judge.is_current]
    return min((minute for minute in minutes if minute is not None), default=None)
