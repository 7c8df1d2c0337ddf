"""SQL over the lake: every existing table by name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from deltaworks.control import paths
from deltaworks.events.reasons import ENTIRE_OBJECT, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import NAMES_COLUMNS, REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect, how_a_table_is_created
from deltaworks.testing import append_rows, catalog_of, declare_table, pipeline_spec

SPEC = pipeline_spec(
    declare_table("orders", "amount decimal(12,2)", when="order"),
    {"name": "refunds", "when": {"name": "refund"}},
    source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"},
    event={"name": {"path": "name"}, "time": {"path": "time"}},
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path, SPEC)


def append(catalog: Catalog, number: int) -> None:
    lake, schema = Lake(catalog.environment.lake), arrow_schema(SPEC.table("orders").column_types())
    day = dt.date(2024, 1, number)
    row = {
        "event_date": day,
        "event_time": dt.datetime(2024, 1, number, 23, 30, tzinfo=dt.UTC),
        "amount": Decimal(number),
    }
    key = paths.table("shop", "orders")
    append_rows(lake, key, [row], number=number, schema=schema, partition_by=["event_date"])


def test_only_existing_tables_are_bound(catalog: Catalog) -> None:
    assert connect(catalog)[1] == []

    append(catalog, 1)
    connection, names = connect(catalog)

    assert names == ["shop.orders"]
    with pytest.raises(duckdb.CatalogException):
        connection.sql("SELECT * FROM shop.refunds")


def test_rows_are_read_with_partitions_and_in_utc(catalog: Catalog) -> None:
    for number in (1, 2, 3):
        append(catalog, number)

    connection, _ = connect(catalog)

    by_date = "SELECT event_date, date_trunc('day', event_time)::date, amount FROM shop.orders ORDER BY 1"
    assert connection.sql(by_date).fetchall() == [
        (dt.date(2024, 1, n), dt.date(2024, 1, n), Decimal(n)) for n in (1, 2, 3)
    ]
    assert connection.sql("SELECT sum(amount) FROM shop.orders WHERE event_date > '2024-01-01'").fetchall() == [
        (Decimal(5),)
    ]


def test_a_connection_is_a_snapshot(catalog: Catalog) -> None:
    append(catalog, 1)
    connection, _ = connect(catalog)
    append(catalog, 2)

    assert connection.sql("SELECT count(*) FROM shop.orders").fetchall() == [(1,)]
    assert connect(catalog)[0].sql("SELECT count(*) FROM shop.orders").fetchall() == [(2,)]


def test_unreadable_objects_are_a_view_of_quarantine(catalog: Catalog) -> None:
    whole = RejectedEvent(7, ENTIRE_OBJECT, "shop/1", b"", None, (Reason(ReasonCode.OBJECT_EMPTY, "", "0 bytes"),))
    event = RejectedEvent(8, 0, "shop/2", b"{}", None, (Reason(ReasonCode.UNKNOWN_EVENT, "", "no name"),))
    rows = quarantine_rows([whole, event], batch_id=3, ingested_at_us=0, fingerprint="fp", retain_raw_bytes=10)
    lake, key = Lake(catalog.environment.lake), paths.table("shop", "quarantine")
    append_rows(lake, key, rows, partition_by=["quarantine_date"])

    connection, names = connect(catalog)

    assert "shop.file_quarantine" in names
    found = connection.sql("SELECT object_key, reason, detail, _batch_id, _seq FROM shop.file_quarantine").fetchall()
    assert found == [("shop/1", "object_empty", "0 bytes", 3, 7)]


MUTABLE = PipelineSpec.model_validate(
    {
        **SPEC.model_dump(mode="json", include={"pipeline", "description", "owner", "source", "event"}),
        "tables": [
            declare_table(
                "visits",
                "org_id string from org",
                "contact_id string from contact",
                "origin string from contact",
                when="visit",
                partition_by=["org_id"],
                mutable={"id": "contact_id", "origin": "origin"},
            ),
            declare_table("requests", *(f"{name} {kind}" for name, kind in REQUEST_COLUMNS.items()), when="request"),
        ],
        "mutations": {"requests": "requests"},
    }
)


def test_deleted_rows_are_excluded_and_ids_have_names(catalog: Catalog) -> None:
    catalog = replace(catalog, pipelines={"shop": MUTABLE})
    lake = Lake(catalog.environment.lake)

    def fill(name: str, columns: Mapping[str, str], rows: list[dict[str, object]]) -> None:
        key, schema = paths.table("shop", name), arrow_schema(columns)
        append_rows(lake, key, rows, schema=schema, partition_by=["org_id"])

    visits: list[dict[str, object]] = [
        {"org_id": org, "contact_id": contact, "event_id": f"{org}{contact}{deleted}", "_deleted": deleted}
        for org, contact, deleted in [("o", "a", None), ("o", "b", False), ("o", "a", True), ("p", "a", None)]
    ]
    fill("visits", MUTABLE.table("visits").column_types(), visits)
    query = "SELECT org_id, contact_id, contact_name FROM shop.visits_named ORDER BY ALL"
    connection, names = connect(catalog)
    assert names == ["shop.visits", "shop.visits_named"]
    assert connection.sql(query).fetchall() == [("o", "a", "a"), ("o", "b", "b"), ("p", "a", "a")]

    named: list[dict[str, object]] = [
        {"org_id": "o", "id": "a", "name": "Ada"},
        {"org_id": "o", "id": "b", "name": "gone", "_deleted": True},
        {"org_id": "q", "id": "a", "name": "of another organisation"},
    ]
    fill("names", NAMES_COLUMNS, named)
    connection, _ = connect(catalog)

    assert connection.sql(query).fetchall() == [("o", "a", "Ada"), ("o", "b", "b"), ("p", "a", "a")]
    assert connection.sql("SELECT count(*) FROM shop.visits").fetchall() == [(3,)]
    assert connection.sql("SELECT id FROM shop.names ORDER BY ALL").fetchall() == [("a",), ("a",)]


NOW = dt.datetime(2026, 3, 1, 12, 3, tzinfo=dt.UTC)


def shop(lag: str | None = "15m", **gold: object) -> PipelineSpec:
    table = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"} | gold
    return pipeline_spec(
        declare_table("orders", "level int"),
        gold={"lag": lag, "tables": [table]},
        views=[{"name": "recent", "sql": "SELECT 1", "reads": ["daily"]}],
    )


def test_a_table_that_does_not_exist_yet_names_its_next_build_or_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "`deltaworks gold build shop --tables daily` builds it now."

    assert how_a_table_is_created(shop(), "daily", now=NOW) == (
        f"shop__gold builds it at 2026-03-01 12:15 UTC; {command}"
    )
    assert how_a_table_is_created(shop(None), "daily", now=NOW) == command
    assert "The stream builds it within 15s" in how_a_table_is_created(shop("15s"), "daily", now=NOW)
    assert "view of daily" in how_a_table_is_created(shop(), "recent", now=NOW)
    assert "Start the stream" in how_a_table_is_created(shop(), "orders", now=NOW)
    monkeypatch.setenv(SCHEDULES_VARIABLE, "off")
    assert how_a_table_is_created(shop(), "daily", now=NOW) == command
