"""Who plays now: the live table of `games` and its view, against a slow pass over the same events."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from deltaworks.control import paths
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.ledger import owner_step
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from deltaworks.testing import append_rows, catalog_of, local_storage
from sandbox.demo.answers import AnswerSheet, answer_players

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
