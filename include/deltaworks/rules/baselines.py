"""What is usual of a rule's figures: medians of the same hour of past weeks, fixed once for each date.

A date's baseline is made of dates that were over the day before, so that it can be built in the evening and is the same
whoever builds it. Minutes for which a figure fired are left out. A backtest reads those that were fixed then, or makes
its own in the same way.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from typing import ClassVar

import duckdb

from deltaworks.control import rule_paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.rules.evaluation import Episode
from deltaworks.rules.minutes import minute_of
from deltaworks.rules.rule_query import RuleQuery
from deltaworks.rules.subjects import Labels
from deltaworks.rules.verdicts import MAD_TO_STANDARD_DEVIATION, Baseline

#: An hour of the day is known once so many dates have it.
MIN_DAYS = 3
_DAY_MINUTES = 24 * 60
#: Weeks of minutes of many figures are read for it.
_BUILD_TIMEOUT_SECONDS = 300.0
_OBSERVATIONS_TABLE = "temp.main.observed"


class BaselineRow(RecordPart):
    """What is usual of a label set in one hour of the date, and by which of the two ways it was learned."""

    labels: tuple[str | None, ...]
    hour: int
    value: float
    spread: float
    is_hour_of_week: bool


class DateBaseline(Record):
    """What was usual on a date, as it was fixed on the evening before."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="baseline of a rule", unreadable_condition="RULE_STATE_UNREADABLE", hint="Delete it: it is built again."
    )

    pipeline: str
    rule: str
    date: str
    rows: tuple[BaselineRow, ...] = ()

    def by_hour(self) -> dict[tuple[Labels, int], Baseline]:
        """The baselines by labels and hour."""
        return {(row.labels, row.hour): Baseline(row.value, row.spread) for row in self.rows}


class Baselines:
    """The baselines of one rule, by date; each is read, or built and fixed, when it is first needed."""

    def __init__(self, objects: ObjectStore, pipeline: str, query: RuleQuery) -> None:
        self._records = RecordStore(objects, DateBaseline)
        self._pipeline = pipeline
        self._query = query
        self._dates: dict[dt.date, dict[tuple[Labels, int], Baseline]] = {}

    def key(self, date: dt.date) -> str:
        """Where the baseline of a date lies; another SQL, or other labels, have another one."""
        declared = f"{self._query.text}\0{self._query.rule.model_dump_json(include=_FINGERPRINTED_KEYS)}"
        digest = hashlib.sha256(declared.encode()).hexdigest()[:12]
        return rule_paths.rule_baseline(self._pipeline, self._query.rule.name, f"{date:%Y-%m-%d}-{digest}")

    def stored(self, date: dt.date) -> DateBaseline | None:
        """The one on record."""
        return self._records.read(self.key(date))

    def ensure(self, connection: duckdb.DuckDBPyConnection, date: dt.date, episodes: Iterable[Episode]) -> None:
        """Have the baseline of a date, which is built where nobody has. Idempotent; the first one built stands.

        Raises:
            ContractError: RULE_BROKEN, the SQL of the rule fails on the past.
        """
        if date in self._dates:
            return
        record = self.stored(date)
        if record is None:
            rows = build_baseline(connection, self._query, date, episodes)
            rule = self._query.rule.name
            built = DateBaseline(pipeline=self._pipeline, rule=rule, date=date.isoformat(), rows=tuple(rows))
            record = self._records.get_or_create(self.key(date), built)
        self._dates = {day: rows for day, rows in self._dates.items() if day > date - dt.timedelta(days=3)}
        self._dates[date] = record.by_hour()

    def at(self, labels: Labels, minute: int) -> Baseline | None:
        """What is usual in a minute of a date that was ensured; None of other dates, and where nothing was learned."""
        date = dt.date(1970, 1, 1) + dt.timedelta(days=minute // _DAY_MINUTES)
        return self._dates.get(date, {}).get((labels, minute % _DAY_MINUTES // 60))


def build_baseline(
    connection: duckdb.DuckDBPyConnection, query: RuleQuery, date: dt.date, past_episodes: Iterable[Episode]
) -> list[BaselineRow]:
    """The baseline of a date, out of the tables of the connection."""
    episodes = list(past_episodes)
    create_observations_table(connection)
    try:
        rows: list[BaselineRow] = []
        if by_week := same_weekdays(query, date):
            for day in by_week:
                load_observations(connection, query, day, day)
            rows = baseline_rows(connection, query, date, episodes)
            if _is_complete(connection, rows, len(by_week)):
                return rows
        past = past_days(query, date)
        connection.execute(f"DELETE FROM {_OBSERVATIONS_TABLE}")
        load_observations(connection, query, past[0], past[-1])
        return baseline_rows(connection, query, date, episodes)
    finally:
        connection.execute(f"DROP TABLE {_OBSERVATIONS_TABLE}")


def create_observations_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table that observations of the past are kept in, for as long as the connection is open."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {_OBSERVATIONS_TABLE.rpartition('.')[2]} (step BIGINT, labels VARCHAR[], value DOUBLE)"
    )


def load_observations(connection: duckdb.DuckDBPyConnection, query: RuleQuery, first: dt.date, last: dt.date) -> None:
    """Add what was observed on dates from one to another."""
    start, end = _first_minute(first), _first_minute(last) + _DAY_MINUTES - query.rule.step_minutes
    query.insert_observations(connection, _OBSERVATIONS_TABLE, start, end, timeout_seconds=_BUILD_TIMEOUT_SECONDS)


def baseline_rows(
    connection: duckdb.DuckDBPyConnection, query: RuleQuery, date: dt.date, episodes: Sequence[Episode]
) -> list[BaselineRow]:
    """The baseline of a date out of what was read: of the hour of the week where weeks suffice, else of the day."""
    declared = query.rule.baseline
    if declared is None:
        return []
    connection.execute("CREATE OR REPLACE TEMP TABLE firing (labels VARCHAR[], began BIGINT, ended BIGINT)")
    if episodes:
        spans = [
            (list(item.labels), item.began, item.ended if item.ended is not None else 1 << 40) for item in episodes
        ]
        connection.executemany("INSERT INTO firing VALUES (?, ?, ?)", spans)
    days = [_first_minute(day) // _DAY_MINUTES for day in past_days(query, date)]
    weekdays = [_first_minute(day) // _DAY_MINUTES for day in same_weekdays(query, date)]
    rows: dict[tuple[Labels, int], BaselineRow] = {}
    for past, min_days, is_hour_of_week in ((days, MIN_DAYS, False), (weekdays, declared.min_weeks, True)):
        for labels, hour, value, spread in (
            connection.execute(_MEDIANS_SQL, [past, min_days]).fetchall() if past else ()
        ):
            key = (tuple(labels), hour)
            rows[key] = BaselineRow(
                labels=key[0], hour=hour, value=value, spread=spread, is_hour_of_week=is_hour_of_week
            )
    return list(rows.values())


def same_weekdays(query: RuleQuery, date: dt.date) -> list[dt.date]:
    """The dates whose hours are the same hours of the week."""
    declared = query.rule.baseline
    if declared is None or declared.kind != "hour_of_week":
        return []
    return [date - dt.timedelta(days=7 * week) for week in range(declared.weeks, 0, -1)]


def past_days(query: RuleQuery, date: dt.date) -> list[dt.date]:
    """The dates of the weeks before, the last of which was over on the day before."""
    weeks = query.rule.baseline.weeks if query.rule.baseline is not None else 0
    return [date - dt.timedelta(days=days) for days in range(7 * weeks + 1, 1, -1)]


def _is_complete(connection: duckdb.DuckDBPyConnection, rows: Sequence[BaselineRow], dates: int) -> bool:
    """Whether every figure and hour that these dates had was learned from them, and they had any."""
    seen = connection.execute(
        f"SELECT count(*) FROM (SELECT DISTINCT labels, step % {_DAY_MINUTES} // 60 FROM {_OBSERVATIONS_TABLE})"
    ).fetchall()[0][0]
    return bool(0 < seen <= sum(row.is_hour_of_week for row in rows))


def _first_minute(date: dt.date) -> int:
    return minute_of(dt.datetime.combine(date, dt.time(), tzinfo=dt.UTC))


_FINGERPRINTED_KEYS = {"labels", "samples", "percentile", "baseline", "step_minutes"}
_MEDIANS_SQL = f"""
    SELECT labels, (step % {_DAY_MINUTES} // 60)::INT AS hour, median(value), {MAD_TO_STANDARD_DEVIATION} * mad(value)
    FROM {_OBSERVATIONS_TABLE} AS observed
    WHERE list_contains(?, step // {_DAY_MINUTES}) AND NOT EXISTS (
      SELECT 1 FROM firing
      WHERE firing.labels = observed.labels AND step >= firing.began AND step < firing.ended)
    GROUP BY ALL HAVING count(DISTINCT step // {_DAY_MINUTES}) >= ?
    ORDER BY ALL"""
