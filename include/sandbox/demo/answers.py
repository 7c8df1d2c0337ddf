"""Compares query results ("answers") over the lake with independently computed expected results ("truth").

The truth does not come from the pipelines. The generator counts it for games, a plain loop over the replayed file for
edits. For the published day of Wikipedia it is published with the data.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb

from generator.truth import GamesTruth
from sandbox.demo.collector_delivery import CollectorKill
from sandbox.demo.earlier_declaration import NEW_TABLE

#: Published with the sample `wikiticker-2015-09-12`: rows, distinct users, added characters.
PUBLISHED_EDITS_FILE = "wikiticker-2015-09-12-sampled.json.gz"
PUBLISHED_EDITS = {"rows": 39_244, "users": 10_531, "added": 9_385_573}


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the result computed from the lake, the expected result, and whether they are equal."""

    pipeline: str
    question: str
    computed: Any
    truth: Any
    is_right: bool


@dataclass(frozen=True, slots=True)
class EditsTruth:
    """Expected results for a file of edits, counted in a plain loop."""

    rows: int
    users: int
    added_bytes: int
    per_hour: dict[datetime, int]
    top_pages: list[tuple[date, str, int]]

    @classmethod
    def from_file(cls, path: Path) -> EditsTruth:
        """Counts the edits in a JSON lines file, gzipped or not. Skips lines without a readable time, page or user."""
        users: set[str] = set()
        hours: Counter[datetime] = Counter()
        pages: Counter[tuple[date, str]] = Counter()
        rows = added = 0
        opened = gzip.open if path.read_bytes()[:2] == b"\x1f\x8b" else open
        with opened(path, "rb") as lines:
            for line in lines:
                edit = _edit(line)
                if edit is None:
                    continue
                at = datetime.fromisoformat(edit["time"]).astimezone(UTC)
                rows += 1
                added += edit.get("added") or 0
                users.add(edit["user"])
                hours[at.replace(minute=0, second=0, microsecond=0)] += 1
                pages[at.date(), edit["page"]] += 1
        most = sorted(pages.items(), key=lambda item: (-item[1], item[0][1]))[:10]
        return cls(rows, len(users), added, dict(hours), [(day, page, edits) for (day, page), edits in most])


def _edit(line: bytes) -> dict[str, Any] | None:
    try:
        edit = json.loads(line)
        datetime.fromisoformat(edit["time"])
    except (ValueError, KeyError, TypeError):
        return None
    return edit if edit.get("page") and edit.get("user") else None


class AnswerSheet:
    """Collects answers from queries over one DuckDB connection, in which `<pipeline>.<table>` are the lake's tables."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
        self._connection = connection
        self._tables = set(tables)
        self.answers: list[Answer] = []

    def fetch_rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns all rows of a query."""
        return self._connection.execute(query).fetchall()

    def fetch_one(self, query: str) -> Any:
        """Returns the single value of a query."""
        return self.fetch_rows(query)[0][0]

    def check_equal(self, pipeline: str, question: str, computed: Any, truth: Any) -> None:
        """Adds an answer that must be equal to the truth."""
        self.answers.append(Answer(pipeline, question, computed, truth, computed == truth))

    def check_between(self, pipeline: str, question: str, computed: int, least: int, most: int) -> None:
        """Adds an answer that must be between two bounds, inclusive."""
        self.answers.append(Answer(pipeline, question, computed, f"{least:,} to {most:,}", least <= computed <= most))

    def check_rows(self, pipeline: str, question: str, computed: dict[Any, Any], truth: dict[Any, Any]) -> None:
        """Adds an answer with many rows, which must all equal the truth; records how many do."""
        wrong = [key for key in computed.keys() | truth.keys() if computed.get(key) != truth.get(key)]
        shown = f"{len(truth) - len(wrong):,} of {len(truth):,} rows" + (f", wrong: {wrong[:3]}" if wrong else "")
        self.answers.append(Answer(pipeline, question, shown, f"{len(truth):,} rows", not wrong))

    def has_table(self, table: str) -> bool:
        """Returns whether a table exists."""
        return table in self._tables


def answer_games(sheet: AnswerSheet, truth: GamesTruth) -> None:
    """Compares the games pipeline's tables with the truth."""
    bronze = {name: sheet.fetch_one(f'SELECT count(*) FROM games."{name}"') for name in truth.bronze_rows}
    sheet.check_rows("games", "bronze rows by table", bronze, truth.bronze_rows)
    sheet.check_equal(
        "games",
        "distinct events",
        sheet.fetch_one("SELECT sum(events) FROM games.events_per_hour"),
        truth.distinct_events,
    )
    hours = {
        (_utc(hour), name): n
        for hour, name, n in sheet.fetch_rows("SELECT hour, event_name, events FROM games.events_per_hour")
    }
    sheet.check_rows("games", "events per hour and type", hours, truth.events_per_hour)
    bookings = {
        _utc(h): (b, n) for h, b, n in sheet.fetch_rows("SELECT hour, bookings, purchases FROM games.bookings_per_hour")
    }
    sheet.check_rows("games", "bookings per hour", bookings, {h: tuple(b) for h, b in truth.bookings_per_hour.items()})
    sheet.check_equal(
        "games", "bookings in all", sheet.fetch_one("SELECT sum(bookings) FROM games.bookings_per_hour"), truth.bookings
    )
    active = dict(sheet.fetch_rows("SELECT event_date, users FROM games.daily_active_users"))
    sheet.check_rows("games", "daily active users", active, truth.daily_active_users)
    cohorts = {
        row[0]: row[1:]
        for row in sheet.fetch_rows("SELECT cohort_date, installs, retained_day_1, retained_day_7 FROM games.retention")
    }
    sheet.check_rows("games", "retention day 1 and 7", cohorts, {day: tuple(c) for day, c in truth.retention.items()})
    if sheet.has_table("games.events_per_hour_live"):
        answer_live(sheet, truth)


def answer_collector(sheet: AnswerSheet, collector: CollectorKill) -> None:
    """Compares the events that a collector delivered, which was killed meanwhile, with those it acknowledged."""
    question = f"events delivered by a collector that was killed ({collector.killed} process)"
    sheet.check_equal("games", question, collector.delivered, collector.acknowledged)


def answer_mobile(sheet: AnswerSheet, truth: GamesTruth) -> None:
    """Compares the mobile pipeline's tables with the truth. It has one table for all event types."""
    bronze = dict(sheet.fetch_rows("SELECT event_name, count(*) FROM mobile.events GROUP BY 1"))
    by_name = {name: rows for name, rows in truth.bronze_rows.items() if name != "events"}
    sheet.check_rows("mobile", "bronze rows by event type", bronze, by_name)
    quarantined = sheet.fetch_one("SELECT count(*) FROM mobile.quarantine")
    sheet.check_equal("mobile", "quarantined rows", quarantined, truth.quarantined_rows)
    distinct = Counter[str]()
    for (_, name), events in truth.events_per_hour.items():
        distinct[name] += events
    computed = dict(sheet.fetch_rows("SELECT event_name, sum(events)::BIGINT FROM mobile.events_per_day GROUP BY 1"))
    sheet.check_rows("mobile", "distinct events by type", computed, distinct)
    sheet.check_equal(
        "mobile",
        "bookings in all",
        sheet.fetch_one("SELECT sum(bookings) FROM mobile.bookings_per_day"),
        truth.bookings,
    )
    # One shard is split into two, which are merged into one. A new shard can remain empty.
    shards = sheet.fetch_one("SELECT count(DISTINCT shard) FROM mobile.events")
    sheet.check_between("mobile", "Kinesis shards with events, after a split and a merge", shards, 3, 4)


def answer_revenue(sheet: AnswerSheet, truth: GamesTruth, *, compactions: int) -> None:
    """Compares the revenue pipeline's tables with the truth of the pipeline whose table it reads.

    Args:
        compactions: number of compactions of that table, to be shown.
    """
    sales = sheet.fetch_one("SELECT count(*) FROM revenue.sales")
    question = f"rows of games.purchase, once each; compacted meanwhile: {compactions}"
    sheet.check_equal("revenue", question, sales, truth.bronze_rows["purchase"])
    revenue = sheet.fetch_one("SELECT sum(revenue) FROM revenue.revenue_per_day")
    sheet.check_equal("revenue", "revenue in all", revenue, truth.bookings)
    days = dict(sheet.fetch_rows("SELECT event_date, sum(revenue) FROM revenue.revenue_per_day GROUP BY 1"))
    expected = Counter[date]()
    for hour, sold in truth.bookings_per_hour.items():
        expected[hour.date()] += sold.amount  # type: ignore[assignment]
    sheet.check_rows("revenue", "revenue per day", days, expected)


def answer_live(sheet: AnswerSheet, truth: GamesTruth) -> None:
    """Checks that live counts are between two bounds: all delivered events, and those minus events the watermark may
    drop. Events that a replay landed in a new table came after the watermark.
    """
    counted = {
        (_utc(hour), name): n
        for hour, name, n in sheet.fetch_rows("SELECT window_start, event_name, events FROM games.events_per_hour_live")
    }
    delivered = truth.delivered_per_hour
    droppable = truth.droppable_per_hour | {key: n for key, n in delivered.items() if key[1] == NEW_TABLE}
    wrong = [
        key
        for key in counted.keys() | delivered.keys()
        if not delivered.get(key, 0) - droppable.get(key, 0) <= counted.get(key, 0) <= delivered.get(key, 0)
    ]
    total = sum(delivered.values())
    sheet.check_between("games", "live: events counted", sum(counted.values()), total - sum(droppable.values()), total)
    sheet.check_equal("games", "live: hours and types out of bounds", len(wrong), 0)
    purchases = dict(
        (_utc(hour), n) for hour, n in sheet.fetch_rows("SELECT window_start, events FROM games.bookings_per_hour_live")
    )
    bought = {hour: n for (hour, name), n in delivered.items() if name == "purchase"}
    wrong_hours = [
        hour
        for hour in purchases.keys() | bought.keys()
        if not bought.get(hour, 0) - droppable.get((hour, "purchase"), 0)
        <= purchases.get(hour, 0)
        <= bought.get(hour, 0)
    ]
    sheet.check_equal("games", "live: hours with purchases out of bounds", len(wrong_hours), 0)
    answer_players(sheet)


def answer_players(sheet: AnswerSheet) -> None:
    """Checks the latest event of each player in the last half hour against a query over all events."""
    recent = "event_time >= (SELECT max(event_time) FROM games.events) - INTERVAL 30 MINUTES"
    newest = "row_number() OVER (PARTITION BY device_id ORDER BY event_time DESC, _seq DESC, _position DESC) = 1"
    columns = "device_id, event_name, _seq, _position"
    merged = {row[0]: row[1:] for row in sheet.fetch_rows(f"SELECT {columns} FROM games.players_now WHERE {recent}")}
    expected = sheet.fetch_rows(f"SELECT {columns} FROM games.events WHERE {recent} QUALIFY {newest}")
    sheet.check_rows("games", "live: newest event of each player", merged, {row[0]: row[1:] for row in expected})


def answer_edits(sheet: AnswerSheet, truth: EditsTruth, *, published: bool) -> None:
    """Compares the edits pipeline's tables with the published totals if `published`, otherwise with the counted
    ones."""
    totals = {
        "rows": sheet.fetch_one("SELECT count(*) FROM edits.edits"),
        "users": sheet.fetch_one("SELECT count(DISTINCT user_name) FROM edits.edits"),
        "added": sheet.fetch_one("SELECT coalesce(sum(added), 0)::BIGINT FROM edits.edits"),
    }
    expected = PUBLISHED_EDITS if published else {"rows": truth.rows, "users": truth.users, "added": truth.added_bytes}
    origin = "published" if published else "plain pass"
    for question, value in totals.items():
        sheet.check_equal("edits", f"{question} ({origin})", int(value), expected[question])
    hours = {_utc(hour): edits for hour, edits in sheet.fetch_rows("SELECT hour, edits FROM edits.edits_per_hour")}
    sheet.check_rows("edits", "edits per hour", hours, truth.per_hour)
    top = sheet.fetch_rows("SELECT event_date, page, edits FROM edits.top_pages ORDER BY edits DESC, page LIMIT 10")
    sheet.check_rows("edits", "top 10 pages", dict(enumerate(map(tuple, top))), dict(enumerate(truth.top_pages)))


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
