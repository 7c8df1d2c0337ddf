"""Evaluates a rule over a past time range without writing anything.

Uses the same SQL, state machine and notification decisions as the rule process. Baselines of a date are learned from
the dates before it, and inhibiting rules are evaluated too. By default it reads current data, late rows included, so
results are optimistic. With `point_in_time` each minute is read from the table versions of its evaluation time, as far
as the tables' logs reach.

Settings of the rule can be overridden, for example `fire.above=0.07`, and the result is compared with known incidents:
detections, delays and false alarms.
"""

from __future__ import annotations

import csv
import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pydantic import ValidationError

from deltaworks.alerts.notification import AlertState, NotificationKind, update_state
from deltaworks.alerts.raising import get_alert_cause
from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.rules.baselines import (
    Baselines,
    DateBaseline,
    baseline_rows,
    create_observations_table,
    load_observations,
    past_days,
)
from deltaworks.rules.evaluation import Episode, MinuteRows, RuleEvaluation, minute_of, minute_start
from deltaworks.rules.inputs import OpenTable, connect_tables, source_tables
from deltaworks.rules.open_alerts import AlertDecision, InhibitedBy, OpenAlerts, never_inhibited
from deltaworks.rules.rule_query import RuleQuery, rule_query
from deltaworks.rules.subjects import FIRING, Labels
from deltaworks.rules.verdicts import Baseline
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import suggest_name
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.yaml_reader import InvalidYamlError, load_yaml
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.query import table_keys
from deltaworks.tables.versions import Versions


class TableHistory:
    """The commit times of the tables that rules read."""

    def __init__(self, lake: Lake, spec: PipelineSpec, rules: Sequence[RuleSpec]) -> None:
        self._lake = lake
        keys = table_keys(spec)
        self._keys = [keys[name] for name in source_tables(spec, [read for rule in rules for read in rule.reads])]
        self._commits = {key: self._readable_commits(key) for key in self._keys}
        self._versions = {key: Versions(lake, key, name=key) for key, times in self._commits.items() if times}
        self._open_versions: dict[str, tuple[int, DeltaTable]] = {}

    def versions_at(self, time: dt.datetime) -> Mapping[str, int] | None:
        """Returns the version of each table at a time. Omits tables that were created later.

        Returns None if a log or the files of a table no longer reach back to that time.
        """
        versions: dict[str, int] = {}
        for key in self._keys:
            commits = self._commits[key]
            commit_index = bisect_right(commits, time, key=lambda commit: commit[0])
            if commit_index:
                versions[key] = commits[commit_index - 1][1]
            elif commits and commits[0][1] > 0:
                return None
        return versions

    def has_all_tables(self, versions: Mapping[str, int]) -> bool:
        """Whether these versions include all tables."""
        return len(versions) == len(self._keys)

    def opener(self, versions: Mapping[str, int]) -> OpenTable:
        """Returns a function that opens tables at these versions. It opens other tables at their current version."""

        def open_table(key: str) -> DeltaTable | None:
            version = versions.get(key)
            if version is None:
                return self._lake.open(key)
            before = self._open_versions.get(key)
            if before is None or before[0] != version:
                self._open_versions[key] = version, self._versions[key].open(version)
            return self._open_versions[key][1]

        return open_table

    def _readable_commits(self, key: str) -> list[tuple[dt.datetime, int]]:
        table = self._lake.open(key)
        if table is None:
            return []
        versions = Versions(self._lake, key, name=key)
        commits = list(commit_history(self._lake, key, newest=table.version()))
        readable = sorted((item.version, item.at) for item in commits if item.version >= versions.oldest)
        # VACUUM removes files of the oldest versions first, so only the newest versions are readable.
        first = bisect_left(readable, True, key=lambda item: _is_readable(versions, item[0]))
        return sorted((at, version) for version, at in readable[first:])


def _is_readable(versions: Versions, version: int) -> bool:
    try:
        return versions.missing_files_error(version) is None
    except ContractError:
        return False


_DAY_SECONDS = 300.0
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class SimulatedNotification:
    """A notification that would have been sent, with its time."""

    at: dt.datetime
    kind: NotificationKind
    subject: str


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """The value and baseline of a label set in one minute, for a chart."""

    minute: int
    labels: Labels
    value: float | None
    baseline: float | None
    spread: float = 0.0


def extreme_values(points: Iterable[ChartPoint], rule: RuleSpec) -> dict[Labels, float]:
    """Returns the value that went furthest in the rule's direction, times the direction's sign, by label set."""
    extreme: dict[Labels, float] = {}
    for point in points:
        if point.value is not None:
            extreme[point.labels] = max(extreme.get(point.labels, float("-inf")), rule.fire.sign * point.value)
    return extreme


@dataclass(slots=True)
class Backtest:
    """The result of a backtest.

    Minutes up to `optimistic_until` were evaluated on current data, because older table versions are unavailable.
    """

    rule: RuleSpec
    first: int
    last: int
    episodes: list[Episode] = field(default_factory=list)
    notifications: list[SimulatedNotification] = field(default_factory=list)
    points: list[ChartPoint] = field(default_factory=list)
    phases: list[tuple[int, Labels, str]] = field(default_factory=list)
    minutes: int = 0
    optimistic_until: dt.datetime | None = None

    @property
    def days(self) -> float:
        """The length of the time range in days."""
        return (self.last - self.first + self.rule.step_minutes) / _DAY_MINUTES

    def evaluated_at(self, minute: int) -> dt.datetime:
        """Returns when the rule process evaluates a minute if no data are late."""
        return evaluation_time(self.rule, minute)


def evaluation_time(rule: RuleSpec, minute: int) -> dt.datetime:
    """Returns when a minute of a rule is evaluated if no data are late."""
    return minute_start(minute + rule.step_minutes) + dt.timedelta(seconds=rule.evaluation_delay_seconds)


def backtest(
    catalog: Catalog,
    pipeline: str,
    rule: RuleSpec,
    *,
    since: dt.datetime,
    until: dt.datetime,
    point_in_time: bool = False,
    keep_points: bool = True,
    query_seconds: float = _DAY_SECONDS,
) -> Backtest:
    """Evaluates a rule for all minutes of a time range. Reads the lake only; safe at any time.

    Args:
        rule: as declared, or with overrides.
        point_in_time: read the table versions at each minute's evaluation time.
        keep_points: keep all values, for a chart.
        query_seconds: timeout of the query of one day.

    Raises:
        ContractError: RULE_BROKEN.
    """
    step = rule.step_minutes
    first = -(-minute_of(since) // step) * step
    last = (minute_of(until) - 1) // step * step
    spec = catalog.pipeline(pipeline)
    declared = {item.name: item for item in spec.rules} | {rule.name: rule}
    result = Backtest(rule, first, last)
    tables = _BacktestTables(
        catalog,
        pipeline,
        [rule, *(declared[name] for name in rule.inhibited_by)],
        point_in_time=point_in_time,
        query_seconds=query_seconds,
    )
    with tables:
        inhibitors = [_BacktestedRule(tables, declared[name]) for name in rule.inhibited_by]
        evaluated = _BacktestedRule(tables, rule)
        alerts, notifications = OpenAlerts(pipeline, rule), _NotificationSimulation(rule)
        for minute_rows in evaluated.minutes(first, last):
            ended = evaluated.evaluation.evaluate(minute_rows, evaluated.baseline_at)
            for inhibitor in inhibitors:
                inhibitor.advance(first, minute_rows.minute)
            decisions = alerts.update(evaluated.evaluation, minute_rows.minute, _inhibited_by(evaluated, inhibitors))
            result.notifications += notifications.notifications_at(minute_rows.minute, decisions)
            result.episodes += ended
            evaluated.ended_episodes += ended
            result.minutes += 1
            if keep_points:
                _record_points(result, evaluated.evaluation, minute_rows)
        result.episodes += evaluated.evaluation.firing.values()
        result.optimistic_until = tables.optimistic_until
    return result


def _record_points(result: Backtest, evaluation: RuleEvaluation, minute_rows: MinuteRows) -> None:
    for item in minute_rows.rows:
        series = evaluation.series[item.labels]
        value, spread = (None, 0.0) if series.baseline is None else series.baseline
        result.points.append(ChartPoint(minute_rows.minute, item.labels, item.value, value, spread))
        result.phases.append((minute_rows.minute, item.labels, series.state.phase))


class _BacktestTables:
    """Tables of a backtest: the current versions, or the versions at the evaluation time of a minute."""

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        rules: Sequence[RuleSpec],
        *,
        point_in_time: bool,
        query_seconds: float,
    ) -> None:
        self._query_seconds = query_seconds
        self._catalog, self._spec, self._rules = catalog, catalog.pipeline(pipeline), rules
        lake = Lake(catalog.environment.lake)
        self.objects = open_objects(catalog.environment.lake)
        self.pipeline = pipeline
        self.point_in_time = point_in_time
        self._history = TableHistory(lake, self._spec, rules) if point_in_time else None
        self._open_table = lake.open
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.optimistic_until: dt.datetime | None = None

    def __enter__(self) -> _BacktestTables:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Returns a connection to the current tables."""
        if self._connection is None:
            self._connection = connect_tables(self._catalog, self._spec, self._rules, self._open_table)
        return self._connection

    def query_of(self, rule: RuleSpec) -> RuleQuery:
        """Returns the query of a rule."""
        file = self._catalog.folder(self.pipeline) / rule.sql
        return rule_query(rule, file.read_text(encoding="utf-8"), self.connection())

    def read_minutes(self, query: RuleQuery, first: int, last: int) -> Iterator[MinuteRows]:
        """Yields the rows of each minute in a range."""
        if self._history is None:
            yield from query.read_minutes(self.connection(), first, last, timeout_seconds=self._query_seconds)
            return
        step, begin = query.rule.step_minutes, first
        while begin <= last:
            versions = self._history.versions_at(evaluation_time(query.rule, begin))
            end = begin
            while end + step <= last and self._history.versions_at(evaluation_time(query.rule, end + step)) == versions:
                end += step
            if versions is None:
                self.optimistic_until = evaluation_time(query.rule, end)
                yield from query.read_minutes(self.connection(), begin, end, timeout_seconds=self._query_seconds)
            elif not self._history.has_all_tables(versions):
                yield from (MinuteRows(minute, []) for minute in range(begin, end + step, step))
            else:
                with connect_tables(self._catalog, self._spec, [query.rule], self._history.opener(versions)) as pinned:
                    yield from query.read_minutes(pinned, begin, end, timeout_seconds=self._query_seconds)
            begin = end + step


class _BacktestedRule:
    """A rule in a backtest: its evaluation and baselines."""

    def __init__(self, tables: _BacktestTables, rule: RuleSpec) -> None:
        self.rule = rule
        self.query = tables.query_of(rule)
        self.evaluation = RuleEvaluation(rule)
        self.ended_episodes: list[Episode] = []
        self._tables = tables
        self._dates: dict[dt.date, dict[tuple[Labels, int], Baseline]] = {}
        self._baseline_days_until: dt.date | None = None
        self._pending_minutes: Iterator[MinuteRows] | None = None
        self._next_minute: MinuteRows | None = None

    def minutes(self, first: int, last: int) -> Iterator[MinuteRows]:
        """Yields the rows of each minute, day by day; builds the baselines of a day at its start."""
        begin = first
        while begin <= last:
            midnight = (begin // _DAY_MINUTES + 1) * _DAY_MINUTES
            end = min(last, midnight - self.rule.step_minutes)
            self._ensure_baseline(minute_start(begin).date())
            yield from self._tables.read_minutes(self.query, begin, end)
            begin = end + self.rule.step_minutes

    def advance(self, first: int, minute: int) -> None:
        """Evaluates the rule up to a minute."""
        step = self.rule.step_minutes
        if self._pending_minutes is None:
            start = -(-first // step) * step
            self._pending_minutes = self.minutes(start, 1 << 40)
            self._next_minute = next(self._pending_minutes, None)
        while self._next_minute is not None and self._next_minute.minute <= minute:
            self.ended_episodes += self.evaluation.evaluate(self._next_minute, self.baseline_at)
            self._next_minute = next(self._pending_minutes, None)

    def baseline_at(self, labels: Labels, minute: int) -> Baseline | None:
        """Returns the baseline of a label set in a minute."""
        return self._dates.get(minute_start(minute).date(), {}).get((labels, minute % _DAY_MINUTES // 60))

    def is_firing(self, rule: RuleSpec, labels: Labels) -> bool:
        """Whether the rule fires for a label set of another rule, compared by the labels that both rules have."""
        shared = [(self.rule.labels.index(name), at) for at, name in enumerate(rule.labels) if name in self.rule.labels]
        return any(
            all(firing_labels[at] == labels[to] for at, to in shared) for firing_labels in self.evaluation.firing
        )

    def _ensure_baseline(self, date: dt.date) -> None:
        baseline = self.rule.baseline
        if baseline is None or not baseline.is_historical or date in self._dates:
            return
        record = self._stored_baseline(date) if self._tables.point_in_time else None
        if record is not None:
            self._dates[date] = record.by_hour()
            return
        connection, days = self._tables.connection(), past_days(self.query, date)
        if self._baseline_days_until is None:
            create_observations_table(connection)
        for day in days:
            if self._baseline_days_until is None or day > self._baseline_days_until:
                load_observations(connection, self.query, day, day)
                self._baseline_days_until = day
        rows = baseline_rows(connection, self.query, date, [*self.ended_episodes, *self.evaluation.firing.values()])
        self._dates[date] = {(row.labels, row.hour): Baseline(row.value, row.spread) for row in rows}

    def _stored_baseline(self, date: dt.date) -> DateBaseline | None:
        return Baselines(self._tables.objects, self._tables.pipeline, self.query).stored(date)


class _NotificationSimulation:
    """Simulates the notifications of a rule, with cooldowns, reminders and rate limits."""

    def __init__(self, rule: RuleSpec) -> None:
        self._rule = rule
        self._cause = get_alert_cause(FIRING)
        self._states: dict[str, AlertState] = {}

    def notifications_at(self, minute: int, alert_decisions: Sequence[AlertDecision]) -> list[SimulatedNotification]:
        """Returns the notifications of a minute."""
        at = evaluation_time(self._rule, minute)
        decisions = {decision.alert.subject: decision.kind == "raise" for decision in alert_decisions}
        notifications = []
        for subject in {**self._states, **decisions}:
            before = self._states.get(subject, AlertState())
            is_open = decisions.get(subject, before.is_open)
            after, kind = update_state(before, self._cause, severity=self._rule.severity if is_open else None, now=at)
            self._states[subject] = after
            if kind is not None:
                notifications.append(SimulatedNotification(at, kind, subject))
        return notifications


def _inhibited_by(rule: _BacktestedRule, inhibitors: Sequence[_BacktestedRule]) -> InhibitedBy:
    if not inhibitors:
        return never_inhibited

    def inhibitor_of(labels: Labels, _minute: int) -> str | None:
        return next((inhibitor.rule.name for inhibitor in inhibitors if inhibitor.is_firing(rule.rule, labels)), None)

    return inhibitor_of


@dataclass(frozen=True, slots=True)
class Incident:
    """A known incident. It has labels if only some series were affected."""

    since: dt.datetime
    until: dt.datetime
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Detection:
    """An incident and the first episode that detected it, or None.

    `delay_minutes` is the time from the start of the incident to the first notification.
    """

    incident: Incident
    episode: Episode | None
    delay_minutes: float | None


def read_incidents(file: Path) -> list[Incident]:
    """Reads incidents from a CSV file with the columns `from`, `to`, and one per label.

    Raises:
        ConfigError: INCIDENTS_INVALID, with the line.
    """
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _invalid_error(file, 1, str(error)) from error
    incidents = []
    for line, row in enumerate(rows, start=2):
        since, until = (_parse_time(file, line, row, name) for name in ("from", "to"))
        if since >= until:
            raise _invalid_error(file, line, "`from` is not before `to`")
        labels = {name: value for name, value in row.items() if name not in ("from", "to", None) and value}
        incidents.append(Incident(since, until, labels))
    return incidents


def detections(result: Backtest, incidents: Sequence[Incident]) -> tuple[list[Detection], list[Episode]]:
    """Matches episodes to incidents; returns the detections and the false alarms.

    An episode matches an incident if their times overlap and their labels agree; it can match several.
    """
    detected = []
    false_alarms = [
        episode for episode in result.episodes if not any(_matches(result, episode, one) for one in incidents)
    ]
    for incident in incidents:
        matching = [episode for episode in result.episodes if _matches(result, episode, incident)]
        first = min(matching, key=lambda episode: episode.fired, default=None)
        delay = None if first is None else (result.evaluated_at(first.fired) - incident.since).total_seconds() / 60
        detected.append(Detection(incident, first, delay))
    return detected, false_alarms


def _matches(result: Backtest, episode: Episode, incident: Incident) -> bool:
    names = result.rule.labels
    if any(name in names and episode.labels[names.index(name)] != value for name, value in incident.labels.items()):
        return False
    ended = dt.datetime.max.replace(tzinfo=dt.UTC) if episode.ended is None else minute_start(episode.ended)
    return minute_start(episode.began) < incident.until and ended > incident.since


def _parse_time(file: Path, line: int, row: Mapping[str, str | None], name: str) -> dt.datetime:
    text = (row.get(name) or "").strip()
    try:
        at = parse_iso(text)
    except ValueError:
        at = None
    if at is None:
        raise _invalid_error(file, line, f"`{name}` is {text!r}; write a time such as 2026-03-01T22:56")
    return at


def _invalid_error(file: Path, line: int, problem: str) -> ConfigError:
    return ConfigError("INCIDENTS_INVALID", f"{file}:{line}: {problem}.")


#: Keys that cannot be overridden, because they identify the rule.
_FIXED_KEYS = ("name", "sql", "reads")


def with_overrides(rule: RuleSpec, settings: Sequence[str]) -> RuleSpec:
    """Returns the rule with keys overridden, each as `key=value` or `key.subkey=value`; `null` removes a key.

    Raises:
        ConfigError: RULE_SETTING_INVALID, an unknown key, a missing value, or an invalid rule.
    """
    data: dict[str, Any] = rule.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for setting in settings:
        path, separator, text = setting.partition("=")
        keys = path.strip().split(".")
        if not separator or not path:
            raise _invalid_override(f"{setting!r} has no value", "Write --set fire.above=0.07.")
        if keys[0] not in RuleSpec.model_fields or keys[0] in _FIXED_KEYS:
            settable = [name for name in RuleSpec.model_fields if name not in _FIXED_KEYS]
            raise _invalid_override(
                f"there is no key {keys[0]!r} to set", f"{suggest_name(keys[0], settable).capitalize()}."
            )
        node = data
        for key in keys[:-1]:
            below = node.setdefault(key, {})
            if not isinstance(below, dict):
                raise _invalid_override(f"{key!r} has nothing below it", f"Write --set {key}=….")
            node = below
        try:
            value = load_yaml(text.encode("utf-8", "surrogateescape")).values
        except InvalidYamlError as error:
            raise _invalid_override(f"{setting!r}: {error.problem}", "Write --set fire.above=0.07.") from error
        if value is None:
            node.pop(keys[-1], None)
        else:
            node[keys[-1]] = value
    try:
        return RuleSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(str(part) for part in first["loc"])
        raise _invalid_override(
            f"{key_path}: {first['msg']}", "Correct the --set option; the declaration is unchanged."
        ) from error


def _invalid_override(problem: str, hint: str) -> ConfigError:
    return ConfigError("RULE_SETTING_INVALID", f"The rule cannot be overridden: {problem}.", hint=hint)
