"""From a file with sixty event types to tables: inferred, landed, read by the stream, and compared with the truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.engine.runner import IngestRun
from deltaworks.errors import ContractError
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.scaffolding.pipeline_yaml import infer_pipeline, write_pipeline
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.land import land, require_file_source
from deltaworks.sources.objects.landed_inputs import find_inputs
from deltaworks.sources.objects.landing_store import landing_store
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from tests.spark.conftest import Project
from tests.webhook_events import webhooks

NAME = "hooks"


def announce(catalog: Catalog) -> int:
    """Put what lies in the landing folder into the relay's log; how many objects that are."""
    source = require_file_source(catalog.pipeline(NAME))
    landing = catalog.environment.landing.with_bucket(source.bucket)
    events = [event for page in list_pages(landing, source.bucket, prefix=source.prefix) for event in page]
    received = [ReceivedEvent(event, "m", datetime(2026, 3, 1, tzinfo=UTC)) for event in events]
    FileEventLogWriter(Lake(catalog.environment.lake), source.relay, epoch=1).append(received)
    return len(events)


def test_every_event_of_a_file_is_in_the_inferred_tables(
    spark: SparkSession, make_project: Callable[..., Project], tmp_path: Path
) -> None:
    sent = webhooks(2_000)
    file = str(sent.write(tmp_path / "events.jsonl"))
    root = make_project({}).root
    write_pipeline(load_catalog(root=root), infer_pipeline(load_catalog(root=root), [file], name=NAME))
    catalog = load_catalog(root=root)
    source = require_file_source(catalog.pipeline(NAME))
    (result,) = land(
        find_inputs([file]),
        source,
        landing_store(catalog.environment.landing.with_bucket(source.bucket)),
        object_bytes=256 << 10,
    )

    assert announce(catalog) == result.objects >= 4
    IngestRun(spark, catalog, NAME, parts=STREAM_PARTS, available_now=True).run()

    connection, names = connect(catalog)

    def answer(query: str) -> list[tuple[object, ...]]:
        return connection.execute(query).fetchall()

    tables = {table.name: table for table in catalog.pipeline(NAME).tables}
    frequent = dict(sent.by_type.most_common(20))
    for name, table in tables.items():
        types = [value for values in table.when.values() for value in values]
        wanted = {value: sent.by_type[str(value)] for value in types}
        if table.catch_all:
            wanted = (
                dict(sent.by_type)
                if table.catch_all is True
                else {name: count for name, count in sent.by_type.items() if name not in frequent}
            )
        assert dict(answer(f"SELECT event_name, count(*) FROM {NAME}.{name} GROUP BY 1")) == wanted
    assert answer(f"SELECT count(*) FROM {NAME}.quarantine") == [(0,)]
    assert {f"{NAME}.{name}" for name in tables} <= set(names)
    orders = " UNION ALL ".join(f"SELECT amount FROM {NAME}.{name}" for name in tables if name.startswith("order_"))
    ((money,),) = answer(f"SELECT sum(amount) FROM ({orders})")
    rest = answer(f"SELECT _rescued FROM {NAME}.other_events WHERE event_name LIKE 'order.%'")
    rare = sum(Decimal(json.loads(str(text))["payload"]["order"]["amount"]) for (text,) in rest)
    assert (Decimal(str(money)) + rare) * 100 == sent.order_cents


def test_every_edit_is_safe_until_a_table_has_a_row(
    spark: SparkSession, make_project: Callable[..., Project], tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"time": "2026-03-01T12:00:00Z", "level": 7, "rank": 1}\n')
    root = make_project({}).root
    path = write_pipeline(load_catalog(root=root), infer_pipeline(load_catalog(root=root), [str(file)], name=NAME))
    IngestRun(spark, load_catalog(root=root), NAME, parts=STREAM_PARTS, available_now=True).run()

    text = path.read_text()
    edited = text.replace("{name: level, path: level, type: long}", "{name: level, path: rank, type: double}")
    assert edited != text
    path.write_text(edited)
    catalog = load_catalog(root=root)
    source = require_file_source(catalog.pipeline(NAME))
    store = landing_store(catalog.environment.landing.with_bucket(source.bucket))
    land(find_inputs([str(file)]), source, store, object_bytes=256 << 10)
    announce(catalog)
    IngestRun(spark, catalog, NAME, parts=STREAM_PARTS, available_now=True).run()

    connection, _ = connect(catalog)
    assert connection.execute(f"SELECT level, typeof(level) FROM {NAME}.{NAME}").fetchall() == [(1.0, "DOUBLE")]
    path.write_text(text)
    with pytest.raises(ContractError, match="SPEC_CHANGE_UNSAFE"):
        IngestRun(spark, load_catalog(root=root), NAME, parts=STREAM_PARTS, available_now=True).run()
