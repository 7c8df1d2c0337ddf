"""Who plays now: the live table of `games` and its view, against a slow pass over the same events."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.engine.keyed.tables import KeyedTables
from deltaworks.engine.ledger import owner_step
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from sandbox.demo.answers import AnswerSheet, answer_players

START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def play(draw: random.Random, batch: int) -> list[dict[str, Any]]:
    """Events of an hour, in no order; a device keeps its platform and its country."""
    rows = []
    for position in range(150):
        device, time = draw.randint(0, 40), START + dt.timedelta(seconds=draw.randint(0, 3_600))
        place = {"platform": ("ios", "android")[device % 2], "country": ("de", "fr", "jp")[device % 3]}
        seen = {"event_time": time, "event_date": time.date(), "event_name": draw.choice(["login", "purchase"])}
        arrived = {"_seq": batch, "_position": position, "_batch_id": batch, "_ingested_at": START}
        rows.append({"device_id": f"d{device}", "event_id": f"{batch}-{position}"} | place | seen | arrived)
    return rows


def test_active_users_are_those_of_a_slow_pass(tmp_path: Path) -> None:
    spec = load_catalog("local", root=PROJECT_ROOT, only=["games"]).pipeline("games")
    storage = StorageSpec(root=f"file://{tmp_path}")
    lake, draw, events = Lake(storage), random.Random(1), []
    tables = KeyedTables(None, lake, spec, owner=owner_step("games", 1))
    schema, key = arrow_schema(spec.table("events").column_types()), paths.table("games", "events")
    for batch in range(4):
        rows = play(draw, batch)
        opened = lake.ensure(key, schema, user_metadata="{}", partition_by=["event_date"])
        lake.append(
            opened, key, pa.Table.from_pylist(rows, schema=schema), step=Step("events", batch), user_metadata="{}"
        )
        tables.follow("players_now")
        events += rows

    environment = EnvironmentSpec(environment="tests", lake=storage, landing=storage, messaging=AwsSpec())
    connection, names = connect(Catalog(environment, {}, {"games": spec}, PROJECT_ROOT))
    view = connection.sql("SELECT platform, country, active_users FROM games.active_users_now").fetchall()

    newest = max(row["event_time"] for row in events)
    active = {
        (row["device_id"], row["platform"], row["country"])
        for row in events
        if row["event_time"] > newest - dt.timedelta(minutes=5)
    }
    assert active
    assert {(platform, country): users for platform, country, users in view} == Counter(
        (platform, country) for _, platform, country in active
    )
    sheet = AnswerSheet(connection, names)
    answer_players(sheet)
    (answer,) = sheet.answers
    assert answer.right, answer
