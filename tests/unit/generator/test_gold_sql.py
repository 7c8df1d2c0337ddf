"""The gold SQL, run in DuckDB on the generator's events, gives the generator's expected results."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from generator.games import deliveries
from generator.settings import FaultRates, GamesSettings
from generator.truth import GamesTruth, TruthCounter
from tests.unit.generator import reference_reader
from tests.unit.generator.reference_reader import PIPELINES, Row
from tests.unit.gold.gold_planning import in_duckdb

OPTIONS = GamesSettings(seed=5, players=200, days=9, rates=FaultRates(duplicates=0.03, late=0.03))


@pytest.fixture(scope="module")
def games() -> tuple[list[Row], GamesTruth]:
    counter = TruthCounter(OPTIONS)
    emitted = list(deliveries(OPTIONS, counter))
    return reference_reader.read(emitted).first_arrivals, counter.truth()


def arrow(rows: Sequence[Row]) -> pa.Table:
    return pa.table(
        {
            "event_date": pa.array([row.at.date() for row in rows], pa.date32()),
            # without a zone: the answer must not depend on the session's
            "event_time": pa.array([row.at.replace(tzinfo=None) for row in rows], pa.timestamp("us")),
            "event_name": pa.array([row.name for row in rows], pa.string()),
            "event_id": pa.array([row.event_id for row in rows], pa.string()),
            "country": pa.array([row.params.get("country") for row in rows], pa.string()),
            "device_id": pa.array([row.params["device_id"] for row in rows], pa.string()),
            "amount": pa.array(
                [Decimal(str(row.params["amount"])) if "amount" in row.params else None for row in rows],
                pa.decimal128(12, 2),
            ),
        }
    )


def run(pipeline: str, table: str, views: dict[str, pa.Table]) -> list[dict[str, Any]]:
    spec = load_spec(PipelineSpec, PIPELINES / pipeline / "pipeline.yaml")
    gold = {each.name: each for each in spec.gold.tables}[table]
    query = (PIPELINES / pipeline / gold.sql).read_text(encoding="utf-8")
    with duckdb.connect() as connection:
        for name in gold.reads:
            connection.register(name, views[name])
        result = connection.sql(in_duckdb(query)).to_arrow_table()
    assert gold.partition_by in result.column_names
    return result.to_pylist()


def answer(games: tuple[list[Row], GamesTruth], table: str) -> list[dict[str, Any]]:
    rows = games[0]
    views = {name: arrow([row for row in rows if row.name == name]) for name in ("install", "purchase")}
    return run("games", table, {"events": arrow(rows), **views})


def test_events_per_hour_gives_the_truth(games: tuple[list[Row], GamesTruth]) -> None:
    wanted = {(hour.replace(tzinfo=None), name): count for (hour, name), count in games[1].events_per_hour.items()}

    found = answer(games, "events_per_hour")

    assert {(row["hour"], row["event_name"]): row["events"] for row in found} == wanted
    assert all(row["hour"].date() == row["event_date"] for row in found)


def test_bookings_per_hour_gives_the_truth(games: tuple[list[Row], GamesTruth]) -> None:
    wanted = {hour.replace(tzinfo=None): tuple(sold) for hour, sold in games[1].bookings_per_hour.items()}

    found = answer(games, "bookings_per_hour")

    assert len(wanted) > 3
    assert {row["hour"]: (row["bookings"], row["purchases"]) for row in found} == wanted


def test_bookings_per_country_gives_the_truth(games: tuple[list[Row], GamesTruth]) -> None:
    sold: dict[tuple[Any, str], list[Decimal]] = {}
    for row in games[0]:
        if row.name == "purchase":
            place = (row.at.date(), row.params.get("country") or "??")
            sold.setdefault(place, []).append(Decimal(str(row.params["amount"])))

    found = answer(games, "bookings_per_country")

    counted = {(row["event_date"], row["country"]): (row["bookings"], row["purchases"]) for row in found}
    assert counted == {place: (sum(amounts), len(amounts)) for place, amounts in sold.items()}
    assert sum(bookings for bookings, _ in counted.values()) == games[1].bookings
    assert len({country for _, country in counted}) > 3


def test_daily_active_users_gives_the_truth(games: tuple[list[Row], GamesTruth]) -> None:
    found = answer(games, "daily_active_users")

    assert {row["event_date"]: row["users"] for row in found} == games[1].daily_active_users


def test_retention_gives_the_truth(games: tuple[list[Row], GamesTruth]) -> None:
    found = answer(games, "retention")

    counted = {row["cohort_date"]: (row["installs"], row["retained_day_1"], row["retained_day_7"]) for row in found}
    assert counted == games[1].retention


def test_the_gold_tables_of_the_edits_count_edits_users_and_pages() -> None:
    pages = ["b"] * 3 + ["a"] * 3 + [f"page {number:03d}" for number in range(120)]
    count = len(pages)
    edits = pa.table(
        {
            "event_date": pa.array([16_690] * count, pa.int32()).cast(pa.date32()),
            "event_time": pa.array([1_442_016_000 + 60 * number for number in range(count)]).cast(pa.timestamp("s")),
            "page": pages,
            "user_name": [f"user {number % 7}" for number in range(count)],
            "is_anonymous": [number % 3 == 0 for number in range(count)],
            "added": list(range(count)),
            "deleted": [1] * count,
        }
    )

    totals = run("edits", "edits_totals", {"edits": edits})
    hours = run("edits", "edits_per_hour", {"edits": edits})
    top = sorted(run("edits", "top_pages", {"edits": edits}), key=lambda row: row["rank"])

    assert [list(row.values())[1:] for row in totals] == [[126, 7, 42, 126 * 125 // 2, 126]]
    by_hour = {row["hour"].hour: (row["edits"], row["users"], row["added"]) for row in hours}
    assert by_hour == {0: (60, 7, 1770), 1: (60, 7, 5370), 2: (6, 6, 735)}
    assert [(row["page"], row["edits"]) for row in top[:3]] == [("a", 3), ("b", 3), ("page 000", 1)]
    assert [row["rank"] for row in top] == list(range(1, 101))
