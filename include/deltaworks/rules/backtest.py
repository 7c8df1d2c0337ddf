"""Judges a rule over a time that has passed, as it would have been, and writes nothing.

The machine, the SQL and the decision on notices are those of the process. What is usual on a date is made of the
dates before it, and rules that hold it back are judged beside it. By default the data are today's, late rows included,
so that the answer is optimistic; `as_known` reads each minute from the versions of the tables that were there when it
was judged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import duckdb

from deltaworks.alerts.notice import NoticeKind, Standing, observe
from deltaworks.control.objects import open_objects
from deltaworks.control.troubles import cause_of
from deltaworks.rules.baselines import Baselines, DateBaseline, days_before, make_table, read_days, rows_of
from deltaworks.rules.inputs import connected
from deltaworks.rules.judge import Episode, Judging, Minute
from deltaworks.rules.known_tables import KnownTables
from deltaworks.rules.minutes import minute_of, start_of
from deltaworks.rules.observing import RuleQuery, rule_query
from deltaworks.rules.subjects import FIRING, Labels
from deltaworks.rules.telling import HeldBy, Telling, Tellings, held_by_none
from deltaworks.rules.verdicts import Baseline
from deltaworks.specs.business_alert import RuleSpec
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

_DAY_SECONDS = 300.0
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class PastNotice:
    """A notice that people would have had, at the time of their own clock."""

    at: dt.datetime
    kind: NoticeKind
    subject: str


@dataclass(frozen=True, slots=True)
class Point:
    """What was observed of a label set in a minute, for a chart."""

    minute: int
    labels: Labels
    value: float | None
    baseline: float | None


@dataclass(slots=True)
class Backtest:
    """What a rule comes to over a span. `optimistic_until`: up to then today's data stood in for those known then."""

    rule: RuleSpec
    first: int
    last: int
    episodes: list[Episode] = field(default_factory=list)
    notices: list[PastNotice] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    phases: list[tuple[int, Labels, str]] = field(default_factory=list)
    minutes: int = 0
    optimistic_until: dt.datetime | None = None

    @property
    def days(self) -> float:
        """How long the span is."""
        return (self.last - self.first + self.rule.step_minutes) / _DAY_MINUTES

    def judged_at(self, minute: int) -> dt.datetime:
        """When the process judges a minute, where nothing is late."""
        return judged_at(self.rule, minute)


def judged_at(rule: RuleSpec, minute: int) -> dt.datetime:
    """When the process judges a minute of a rule, where nothing is late."""
    return start_of(minute + rule.step_minutes) + dt.timedelta(seconds=rule.settle_seconds)


def backtest(
    catalog: Catalog,
    pipeline: str,
    rule: RuleSpec,
    *,
    since: dt.datetime,
    until: dt.datetime,
    as_known: bool = False,
    keep_points: bool = True,
) -> Backtest:
    """Judge a rule for the minutes from one time up to another. Reads the lake alone; safe beside anything.

    Args:
        rule: as it is declared, or with other bounds.
        keep_points: keep what was observed, for a chart.

    Raises:
        ContractError: RULE_BROKEN.
    """
    step = rule.step_minutes
    first = -(-minute_of(since) // step) * step
    last = (minute_of(until) - 1) // step * step
    spec = catalog.pipeline(pipeline)
    declared = {item.name: item for item in spec.alerts} | {rule.name: rule}
    result = Backtest(rule, first, last)
    past = _Past(catalog, pipeline, [rule, *(declared[name] for name in rule.unless)], as_known=as_known)
    with past:
        holders = [_Judged(past, declared[name]) for name in rule.unless]
        judged = _Judged(past, rule)
        tellings, notices = Tellings(pipeline, rule), _Notices(rule)
        for observed in judged.minutes(first, last):
            ended = judged.judging.take(observed, judged.usual)
            for holder in holders:
                holder.advance(first, observed.minute)
            fresh = tellings.follow(judged.judging, observed.minute, _held_by(judged, holders))
            result.notices += notices.of(observed.minute, fresh)
            result.episodes += ended
            judged.over += ended
            result.minutes += 1
            if keep_points:
                _keep(result, judged.judging, observed)
        result.episodes += judged.judging.firing.values()
        result.optimistic_until = past.optimistic_until
    return result


def _keep(result: Backtest, judging: Judging, observed: Minute) -> None:
    for item in observed.observations:
        figure = judging.figures[item.labels]
        usual = None if figure.usual is None else figure.usual.value
        result.points.append(Point(observed.minute, item.labels, item.value, usual))
        result.phases.append((observed.minute, item.labels, figure.state.phase))


class _Past:
    """The tables as they are now, or as they were when a minute was judged."""

    def __init__(self, catalog: Catalog, pipeline: str, rules: Sequence[RuleSpec], *, as_known: bool) -> None:
        self._catalog, self._spec, self._rules = catalog, catalog.pipeline(pipeline), rules
        lake = Lake(catalog.environment.lake)
        self.objects = open_objects(catalog.environment.lake)
        self.pipeline = pipeline
        self.as_known = as_known
        self._versions = KnownTables(lake, self._spec, rules) if as_known else None
        self._opened = lake.open
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.optimistic_until: dt.datetime | None = None

    def __enter__(self) -> _Past:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Today's tables."""
        if self._connection is None:
            self._connection = connected(self._catalog, self._spec, self._rules, self._opened)
        return self._connection

    def text(self, rule: RuleSpec) -> RuleQuery:
        """The query of a rule."""
        file = self._catalog.folder(self.pipeline) / rule.sql
        return rule_query(rule, file.read_text(encoding="utf-8"), self.connection())

    def observe(self, query: RuleQuery, first: int, last: int) -> Iterator[Minute]:
        """What was observed from one minute to another."""
        if self._versions is None:
            yield from query.observe(self.connection(), first, last, seconds=_DAY_SECONDS)
            return
        step, begin = query.rule.step_minutes, first
        while begin <= last:
            versions = self._versions.at(judged_at(query.rule, begin))
            end = begin
            while end + step <= last and self._versions.at(judged_at(query.rule, end + step)) == versions:
                end += step
            if versions is None:
                self.optimistic_until = judged_at(query.rule, end)
                yield from query.observe(self.connection(), begin, end, seconds=_DAY_SECONDS)
            elif not self._versions.are_there(versions):
                yield from (Minute(minute, []) for minute in range(begin, end + step, step))
            else:
                with connected(self._catalog, self._spec, [query.rule], self._versions.opener(versions)) as pinned:
                    yield from query.observe(pinned, begin, end, seconds=_DAY_SECONDS)
            begin = end + step


class _Judged:
    """One rule of a backtest, with what is usual of it on each date."""

    def __init__(self, past: _Past, rule: RuleSpec) -> None:
        self.rule = rule
        self.query = past.text(rule)
        self.judging = Judging(rule)
        self.over: list[Episode] = []
        self._past = past
        self._dates: dict[dt.date, dict[tuple[Labels, int], Baseline]] = {}
        self._read_to: dt.date | None = None
        self._ahead: Iterator[Minute] | None = None
        self._next: Minute | None = None

    def minutes(self, first: int, last: int) -> Iterator[Minute]:
        """What was observed, day by day; what is usual of a day is made when it begins."""
        begin = first
        while begin <= last:
            midnight = (begin // _DAY_MINUTES + 1) * _DAY_MINUTES
            end = min(last, midnight - self.rule.step_minutes)
            self._learn(start_of(begin).date())
            yield from self._past.observe(self.query, begin, end)
            begin = end + self.rule.step_minutes

    def advance(self, first: int, minute: int) -> None:
        """Judge as far as to a minute."""
        step = self.rule.step_minutes
        if self._ahead is None:
            start = -(-first // step) * step
            self._ahead = self.minutes(start, 1 << 40)
            self._next = next(self._ahead, None)
        while self._next is not None and self._next.minute <= minute:
            self.over += self.judging.take(self._next, self.usual)
            self._next = next(self._ahead, None)

    def usual(self, labels: Labels, minute: int) -> Baseline | None:
        """What was usual in a minute."""
        return self._dates.get(start_of(minute).date(), {}).get((labels, minute % _DAY_MINUTES // 60))

    def fires(self, rule: RuleSpec, labels: Labels) -> bool:
        """Whether it fires now with the labels that another rule shares with it."""
        shared = [(self.rule.labels.index(name), at) for at, name in enumerate(rule.labels) if name in self.rule.labels]
        return any(all(own[at] == labels[to] for at, to in shared) for own in self.judging.firing)

    def _learn(self, date: dt.date) -> None:
        baseline = self.rule.baseline
        if baseline is None or not baseline.is_historical or date in self._dates:
            return
        record = self._fixed(date) if self._past.as_known else None
        if record is not None:
            self._dates[date] = record.by_hour()
            return
        connection, days = self._past.connection(), days_before(self.query, date)
        if self._read_to is None:
            make_table(connection)
        for day in days:
            if self._read_to is None or day > self._read_to:
                read_days(connection, self.query, day, day)
                self._read_to = day
        rows = rows_of(connection, self.query, date, [*self.over, *self.judging.firing.values()])
        self._dates[date] = {(row.labels, row.hour): Baseline(row.value, row.spread) for row in rows}

    def _fixed(self, date: dt.date) -> DateBaseline | None:
        return Baselines(self._past.objects, self._past.pipeline, self.query).fixed(date)


class _Notices:
    """The notices that people would have had: by cooldowns, reminders and limits as alerts have them."""

    def __init__(self, rule: RuleSpec) -> None:
        self._rule = rule
        self._cause = cause_of(FIRING)
        self._standings: dict[str, Standing] = {}

    def of(self, minute: int, tellings: Sequence[Telling]) -> list[PastNotice]:
        """The notices of a minute."""
        at = judged_at(self._rule, minute)
        fresh = {telling.alert.subject: telling.kind == "raise" for telling in tellings}
        notices = []
        for subject in {**self._standings, **fresh}:
            before = self._standings.get(subject, Standing())
            is_open = fresh.get(subject, before.open)
            after, kind = observe(before, self._cause, severity=self._rule.severity if is_open else None, now=at)
            self._standings[subject] = after
            if kind is not None:
                notices.append(PastNotice(at, kind, subject))
        return notices


def _held_by(judged: _Judged, holders: Sequence[_Judged]) -> HeldBy:
    if not holders:
        return held_by_none

    def held(labels: Labels, _minute: int) -> str | None:
        return next((holder.rule.name for holder in holders if holder.fires(judged.rule, labels)), None)

    return held
