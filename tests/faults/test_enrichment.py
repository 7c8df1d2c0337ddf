"""A driver is killed in the middle of a batch, and the database of its look-ups replaced before the next one comes: all
rows of the batch have the answers of the database that it was fixed with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.control import paths
from generator.mmdb import database
from tests.faults.harness.driver import Driver
from tests.faults.harness.injection import Fault
from tests.faults.harness.stage import PIPELINE, Stage

CITY = "City.mmdb"
ENRICH = [{"name": "geo", "kind": "mmdb", "of": "ip", "database": CITY, "fields": {"country": "country.iso_code"}}]
#: Eight are committed at once: with more of them some are left when the first one has landed.
TABLES = 20


def put_database(stage: Stage, country: str) -> str:
    """Put a database that says one country of everything; its ETag."""
    records = {"198.18.0.0/15": {"country": {"iso_code": country}}}
    data = database(records, kind="City", description="invented", built_at=int(time.time()))
    stage.objects.put(paths.database(CITY), data)
    etag = stage.objects.etag(paths.database(CITY))
    assert etag is not None
    return etag


def declare(stage: Stage) -> None:
    columns = [
        {"name": "n", "path": "n", "type": "long", "required": True},
        {"name": "network", "path": "ip", "type": "string"},
        {"name": "country", "path": "_geo.country", "type": "string"},
    ]
    tables: list[dict[str, Any]] = [{"name": "events", "catch_all": True, "columns": columns}]
    tables += [{"name": kind, "when": {"name": kind}, "columns": columns} for kind in stage.kinds]
    stage.declare(tables=tables, enrich=ENRICH, private=[{"path": "ip", "keep": "network"}])


def land(stage: Stage) -> None:
    events = [stage.event(kind, ip="198.18.0.7") for kind in stage.kinds]
    for event in events:
        stage.owed[event["name"], event["id"]] += 1
        stage.owed["events", event["id"]] += 1
    stage.announce(events)


def answers(stage: Stage) -> dict[int, set[tuple[str, str]]]:
    """By batch, network and country of its rows in all tables."""
    by_batch: dict[int, set[tuple[str, str]]] = {}
    for table in ("events", *stage.kinds):
        rows = stage.lake.rows(paths.table(PIPELINE, table), columns=["_batch_id", "network", "country"])
        for row in [] if rows is None else rows.to_pylist():
            by_batch.setdefault(row["_batch_id"], set()).add((row["network"], row["country"]))
    return by_batch


def etags(stage: Stage) -> list[list[str]]:
    """The databases that the ledger names, by batch."""
    rows = stage.lake.rows(paths.pipeline_control(PIPELINE, "checkpoint_store"))
    assert rows is not None
    in_order = sorted(rows.to_pylist(), key=lambda row: row["batch_id"])
    return [[one["etag"] for one in json.loads(row["source_metadata"])["databases"]] for row in in_order]


@pytest.mark.parametrize("off", ["", "prepared"])
def test_a_batch_killed_between_its_commits_is_finished_under_its_database_though_that_was_replaced(
    make_stage: Callable[..., Stage], tell: Callable[..., Any], off: str
) -> None:
    stage = make_stage(tables=TABLES)
    declare(stage)
    first = put_database(stage, "GB")
    land(stage)
    without = [off] if off else []
    with Driver(stage, faults=[Fault(point="committed:.*", after="begun")], off=without) as driver:
        assert driver.wait() != 0, driver.tail()
        driver.injected()
    landed = answers(stage)
    second = put_database(stage, "FR")
    land(stage)
    with Driver(stage, off=without) as successor:
        successor.run_to_end()

    rows = answers(stage)
    verdict = tell(
        "database replaced, driver killed between commits", stage, off=off, note=f"rows {landed}, then {rows}"
    )
    assert verdict.is_exact
    if off:
        assert {country for _, country in rows[0]} == {"GB", "FR"}
    else:
        assert rows == {0: {("198.18.0.0", "GB")}, 1: {("198.18.0.0", "FR")}}
        assert etags(stage) == [[first], [second]]
