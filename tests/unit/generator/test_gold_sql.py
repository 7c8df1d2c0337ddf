"""Parser, live tables and gold SQL give the expected results on generated events, without Spark."""

from __future__ import annotations

import datetime as dt
import gzip
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.ledger import owner_step
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from deltaworks.testing import append_rows, catalog_of, local_storage
from generator.games import deliveries
from generator.settings import FaultRates, GamesSettings
from generator.truth import GamesTruth, TruthCounter
from sandbox.demo.answers import AnswerSheet, answer_players
from tests.unit.generator import reference_reader
from tests.unit.generator.reference_reader import GAMES, PIPELINES, Row
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


START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def play(draw: random.Random, batch: int, start: dt.datetime = START) -> list[dict[str, Any]]:
    """Events of an hour, in no order; a device keeps its platform and its country."""
    return [
        event(draw.randint(0, 40), start + dt.timedelta(seconds=draw.randint(0, 3_600)), batch, position)
        | {"event_name": draw.choice(["login", "purchase"])}
        for position in range(150)
    ]


def event(device: int, time: dt.datetime, batch: int, position: int) -> dict[str, Any]:
    """An event of a device."""
    place = {"platform": ("ios", "android")[device % 2], "country": ("de", "fr", "jp")[device % 3]}
    seen = {"event_time": time, "event_date": time.date(), "event_name": "login"}
    arrived = {"_seq": batch, "_position": position, "_batch_id": batch, "_ingested_at": START}
    return {"device_id": f"d{device}", "event_id": f"{batch}-{position}"} | place | seen | arrived


def followed(root: Path, batches: Sequence[Sequence[dict[str, Any]]]) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    """Views over the live table of these batches, and the names of all tables and views."""
    spec = load_catalog("local", root=PROJECT_ROOT, only=["games"]).pipeline("games")
    storage = local_storage(root)
    lake = Lake(storage)
    tables = KeyedTables(None, lake, spec, owner=owner_step("games", 1))
    schema, key = arrow_schema(spec.table("events").column_types()), paths.table("games", "events")
    for batch, rows in enumerate(batches):
        append_rows(lake, key, rows, number=batch, schema=schema, partition_by=["event_date"])
        tables.catch_up("players_now")
    return connect(catalog_of(PROJECT_ROOT, spec, lake=storage))


def active_users(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], int]:
    """What the view says, by platform and country."""
    rows = connection.sql("SELECT platform, country, active_users FROM games.active_users_now").fetchall()
    return {(platform, country): users for platform, country, users in rows}


def active_of(events: Sequence[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The same by a slow pass over events, the newest of which is now."""
    newest = max(row["event_time"] for row in events)
    active = {
        (row["device_id"], row["platform"], row["country"])
        for row in events
        if row["event_time"] > newest - dt.timedelta(minutes=5)
    }
    return Counter((platform, country) for _, platform, country in active)


def test_active_users_equal_those_of_a_slow_scan(tmp_path: Path) -> None:
    draw = random.Random(1)
    batches = [play(draw, batch) for batch in range(4)]

    connection, names = followed(tmp_path, batches)

    owed = active_of([row for rows in batches for row in rows])
    assert owed
    assert active_users(connection) == owed
    sheet = AnswerSheet(connection, names)
    answer_players(sheet)
    (answer,) = sheet.answers
    assert answer.is_right, answer


def test_a_device_whose_clock_is_ahead_neither_counts_nor_hides_the_others(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    right = [event(device, now - dt.timedelta(seconds=30), 0, device) for device in range(5)]
    ahead = event(7, now + dt.timedelta(hours=15), 0, 7)

    connection, _ = followed(tmp_path, [[*right, ahead]])

    assert active_users(connection) == active_of(right)


@pytest.mark.parametrize("seed", range(2))
def test_every_event_is_recovered_and_every_fault_has_its_reason(seed: int) -> None:
    rates = FaultRates(malformed=0.1, without_time=0.01, unknown_name=0.01, type_mismatch=0.01, missing_required=0.01)
    options = GamesSettings(seed=seed, players=200, days=3, events_per_file=150, rates=rates)
    counter = TruthCounter(options)
    payloads = (
        Payload(number, delivery.key, gzip.decompress(delivery.body))
        for number, delivery in enumerate(deliveries(options, counter))
    )

    rows: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    parser = Parser(GAMES, redaction_keys=RedactionKeys(bytes(32)))
    for name, table in parser.parse(payloads, BatchMetadata(batch_id=0, ingested_at_us=0, fingerprint="f")):
        rows[name] += table.num_rows
        if name == "quarantine":
            reasons.update(reason["code"] for each in table["reasons"].to_pylist() for reason in each)

    truth = counter.truth()
    assert truth.quarantined_rows > 300
    assert rows.pop("quarantine") == truth.quarantined_rows
    assert rows == truth.bronze_rows
    assert reasons == truth.quarantine_reasons
