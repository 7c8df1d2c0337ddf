"""A stream and a gold build on Spark emit lineage over HTTP: datasets, columns, start and end."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.runner import IngestRun
from deltaworks.lineage.runs import CLOSE_SECONDS, stream_lineage
from deltaworks.operations.base import OperationContext
from deltaworks.operations.gold import BuildOptions, build
from deltaworks.operations.registry import get_operation
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import LineageSpec
from deltaworks.testing import declare_pipeline, declare_table
from tests.spark.conftest import Project
from tests.unit.lineage.backend import Backend, running_backend
from tests.waiting import PATIENCE_SECONDS

SHOP = declare_pipeline(
    declare_table("orders", "country string from customer.country", "amount decimal(12,2)", when={"kind": "order"}),
    event={"name": {"path": "kind"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": ["id"]},
    gold={
        "tables": [{"name": "turnover", "sql": "gold/turnover.sql", "reads": ["orders"], "partition_by": "event_date"}]
    },
    stream={"tasks_per_batch": 2, "lease_ttl_seconds": 3},
)
TURNOVER = "SELECT event_date, country AS land, sum(amount) AS turnover FROM orders GROUP BY event_date, country"


@pytest.fixture
def shop(make_project: Callable[..., Project]) -> Project:
    project = make_project({"shop": (SHOP, {"gold/turnover.sql": TURNOVER})})
    landing = project.catalog.environment.landing
    folder = Path(landing.prefix)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        order = {"kind": "order", "id": number, "at": 1_700_000_000, "customer": {"country": "de"}, "amount": number}
        (folder / f"o{number}.json").write_text(json.dumps(order), encoding="utf-8")
    events = [event for page in list_pages(landing.with_bucket("landing"), "landing", prefix="") for event in page]
    received = [ReceivedEvent(event, "m", datetime(2026, 3, 1, tzinfo=UTC)) for event in events]
    FileEventLogWriter(project.lake, "landing", epoch=1).append(received)
    return project


def received_by(project: Project, backend: Backend, **more: Any) -> Catalog:
    transport = {"type": "http", "url": backend.address} | more
    lineage = LineageSpec(transport=transport, every_seconds=1)
    environment = project.catalog.environment.model_copy(update={"lineage": lineage})
    return dataclasses.replace(project.catalog, environment=environment)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    monkeypatch.setattr("deltaworks.lineage.runs.CLOSE_SECONDS", PATIENCE_SECONDS)
    with running_backend() as running:
        yield running


def test_a_stream_and_its_gold_emit_tables_and_columns(spark: SparkSession, shop: Project, backend: Backend) -> None:
    catalog = received_by(shop, backend)
    with stream_lineage(spark, catalog, ["shop"]):
        assert IngestRun(spark, catalog, "shop", parts=STREAM_PARTS, available_now=True).run().rows == 3
    stream = [item for item in backend.events if item["job"]["name"] == "shop.stream"]
    rebuild = get_operation("rebuild_gold")
    build(OperationContext(operation=rebuild, catalog=catalog, subject="shop", _session=spark), BuildOptions())
    gold = [item for item in backend.events if item["job"]["name"] == "shop.gold"]

    for events in (stream, gold):
        assert (events[0]["eventType"], events[-1]["eventType"]) == ("START", "COMPLETE")
        assert len({item["run"]["runId"] for item in events}) == 1
    root = shop.lake.storage.prefix
    orders = next(item for item in stream[-1]["outputs"] if item["name"].endswith("/orders"))
    assert (orders["namespace"], orders["name"]) == ("file", f"{root}/{paths.table('shop', 'orders')}")
    (landed,) = stream[-1]["inputs"]
    origin = orders["facets"]["columnLineage"]["fields"]["country"]["inputFields"][0]
    assert (origin["namespace"], origin["name"], origin["field"]) == ("file", landed["name"], "customer.country")
    (read,) = gold[-1]["inputs"]
    assert read["name"] == orders["name"]
    (written,) = gold[-1]["outputs"]
    assert written["name"] == f"{root}/{paths.table('shop', 'turnover')}"
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert {field["name"]: field["type"] for field in written["facets"]["schema"]["fields"]} == {
        "event_date": "date",
        "land": "string",
        "turnover": "decimal(22,2)",
    }
    columns = written["facets"]["columnLineage"]["fields"]
    assert {name: [item["field"] for item in matched["inputFields"]] for name, matched in columns.items()} == {
        "event_date": ["event_date"],
        "land": ["country"],
        "turnover": ["amount"],
    }


def test_a_hanging_backend_delays_only_the_end_of_a_stream(spark: SparkSession, shop: Project) -> None:
    with running_backend(hangs=True) as hanging:
        catalog = received_by(shop, hanging, timeout=600)
        started = time.monotonic()
        with stream_lineage(spark, catalog, ["shop"]):
            result = IngestRun(spark, catalog, "shop", parts=STREAM_PARTS, available_now=True).run()
        whole = time.monotonic() - started
    assert result.rows == 3
    assert whole - result.seconds < CLOSE_SECONDS + 5
