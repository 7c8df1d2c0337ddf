"""Baselines of rules: medians of the same hour in past weeks, computed once per date.

The baseline of a date uses only dates that ended a day earlier. So it can be built the evening before, and does not
depend on the process that builds it. Minutes in which the rule fired are excluded. A backtest reads stored baselines or
builds them in the same way.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Sequence
from typing import ClassVar

import duckdb

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.rules.evaluation import Episode, minute_of
from deltaworks.rules.rule_query import RuleQuery
from deltaworks.rules.subjects import Labels
from deltaworks.rules.verdicts import MAD_TO_STANDARD_DEVIATION, Baseline

#: Minimum number of dates that must contain an hour of the day for its baseline.
MIN_DAYS = 3
_DAY_MINUTES = 24 * 60
#: Timeout of a query over weeks of minutes of many series.
_BUILD_TIMEOUT_SECONDS = 300.0
_OBSERVATIONS_TABLE = "temp.main.observed"


class BaselineRow(RecordPart):
    """The baseline of a label set in one hour, learned from the same hour of the week or of the day."""

    labels: tuple[str | None, ...]
    hour: int
    value: float
    spread: float
    is_hour_of_week: bool


class DateBaseline(Record):
    """The stored baseline of one date."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="baseline of a rule", unreadable_condition="RULE_STATE_UNREADABLE", hint="Delete it; it is rebuilt."
    )

    pipeline: str
    rule: str
    date: str
    rows: tuple[BaselineRow, ...] = ()

    def by_hour(self) -> dict[tuple[Labels, int], Baseline]:
        """Returns the baselines by labels and hour."""
        return {(row.labels, row.hour): Baseline(row.value, row.spread) for row in self.rows}


class Baselines:
    """The baselines of one rule by date. A baseline is read, or built and stored, on first use."""

    def __init__(self, objects: ObjectStore, pipeline: str, query: RuleQuery) -> None:
        self._records = RecordStore(objects, DateBaseline)
        self._pipeline = pipeline
        self._query = query
        self._dates: dict[dt.date, dict[tuple[Labels, int], Baseline]] = {}

    def key(self, date: dt.date) -> str:
        """Returns the key of a date's baseline. It depends on the SQL and the settings that affect values."""
        declared = f"{self._query.text}\0{self._query.rule.model_dump_json(include=_FINGERPRINTED_KEYS)}"
        digest = hashlib.sha256(declared.encode()).hexdigest()[:12]
        return paths.rule_baseline(self._pipeline, self._query.rule.name, f"{date:%Y-%m-%d}-{digest}")

    def stored(self, date: dt.date) -> DateBaseline | None:
        """Returns the stored baseline of a date, or None."""
        return self._records.read(self.key(date))

    def ensure(self, connection: duckdb.DuckDBPyConnection, date: dt.date, episodes: Iterable[Episode]) -> None:
        """Loads the baseline of a date, and builds and stores it if needed.

        Idempotent. If several processes build it, all use the one that was stored first.

        Raises:
            ContractError: RULE_BROKEN, the rule's SQL fails on past data.
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
        """Returns the baseline of a label set in a minute, or None if it was not learned or its date was not loaded."""
        date = dt.date(1970, 1, 1) + dt.timedelta(days=minute // _DAY_MINUTES)
        return self._dates.get(date, {}).get((labels, minute % _DAY_MINUTES // 60))


def build_baseline(
    connection: duckdb.DuckDBPyConnection, query: RuleQuery, date: dt.date, past_episodes: Iterable[Episode]
) -> list[BaselineRow]:
    """Builds the baseline of a date from the connection's tables."""
    episodes = list(past_episodes)
    create_observations_table(connection)
    try:
        rows: list[BaselineRow] = []
        if weekdays := same_weekdays(query, date):
            for day in weekdays:
                load_observations(connection, query, day, day)
            rows = baseline_rows(connection, query, date, episodes)
            if _is_complete(connection, rows, len(weekdays)):
                return rows
        past = past_days(query, date)
        connection.execute(f"DELETE FROM {_OBSERVATIONS_TABLE}")
        load_observations(connection, query, past[0], past[-1])
        return baseline_rows(connection, query, date, episodes)
    finally:
        connection.execute(f"DROP TABLE {_OBSERVATIONS_TABLE}")


def create_observations_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates the temporary table for values of past minutes."""
    name = _OBSERVATIONS_TABLE.rpartition(".")[2]
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} (step BIGINT, labels VARCHAR[], value DOUBLE)")


def load_observations(connection: duckdb.DuckDBPyConnection, query: RuleQuery, first: dt.date, last: dt.date) -> None:
    """Loads the values of a range of dates into the temporary table."""
    start, end = _first_minute(first), _first_minute(last) + _DAY_MINUTES - query.rule.step_minutes
    query.insert_observations(connection, _OBSERVATIONS_TABLE, start, end, timeout_seconds=_BUILD_TIMEOUT_SECONDS)


def baseline_rows(
    connection: duckdb.DuckDBPyConnection, query: RuleQuery, date: dt.date, episodes: Sequence[Episode]
) -> list[BaselineRow]:
    """Computes a date's baseline from loaded values: per hour of the week if enough weeks exist, else per hour of the
    day.
    """
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
    """Returns the past dates with the same weekday."""
    declared = query.rule.baseline
    if declared is None or declared.kind != "hour_of_week":
        return []
    return [date - dt.timedelta(days=7 * week) for week in range(declared.weeks, 0, -1)]


def past_days(query: RuleQuery, date: dt.date) -> list[dt.date]:
    """Returns the dates of the past weeks, ending two days before the date."""
    weeks = query.rule.baseline.weeks if query.rule.baseline is not None else 0
    return [date - dt.timedelta(days=days) for days in range(7 * weeks + 1, 1, -1)]


def _is_complete(connection: duckdb.DuckDBPyConnection, rows: Sequence[BaselineRow], dates: int) -> bool:
    """Whether every observed label set and hour of the day has a baseline by hour of the week, and there is at least
    one.
    """
    observed_count = connection.execute(
        f"SELECT count(*) FROM (SELECT DISTINCT labels, step % {_DAY_MINUTES} // 60 FROM {_OBSERVATIONS_TABLE})"
    ).fetchall()[0][0]
    return bool(0 < observed_count <= sum(row.is_hour_of_week for row in rows))


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
