"""Gold over mutable rows and over undeclared fields that are variants."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold import table_commit
from deltaworks.gold.build import GoldBuildResult, rebuild_gold
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.query import connect
from deltaworks.tables.variant import encode_json
from deltaworks.testing import append_rows
from tests.spark.gold.shop_data import SHOP, event

FOLDER = PROJECT_ROOT / "include" / "pipelines" / "engagement"
START = dt.datetime(2025, 3, 3, 12, tzinfo=dt.UTC)
QUOTED = "o'hara & \\sons"


@pytest.fixture
def lake_of(make_project: Callable[..., Any]) -> Any:
    sql = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.glob("*/*.sql")}
    return make_project({"engagement": ((FOLDER / "pipeline.yaml").read_text(), sql)})


def activity(number: int, org: str, contact: str, *, day: int = 0, event_id: str | None = None) -> dict[str, Any]:
    return {
        "event_id": event_id or f"e{number}",
        "event_time": START + dt.timedelta(days=day),
        "org_id": org,
        "engagement_id": f"g{number}",
        "contact_id": contact,
        "origin_contact_id": contact,
        "activity_type": "email_open",
        "engagement_date": (START + dt.timedelta(days=day)).date(),
    }


def build(spark: SparkSession, project: Any) -> GoldBuildResult:
    return rebuild_gold(spark, project.catalog, "engagement")


def top(project: Any) -> list[tuple[Any, ...]]:
    columns = ("org_id", "place", "contact_id", "contact_name", "activities")
    return sorted(tuple(row[name] for name in columns) for row in project.rows("engagement", "top_contacts"))


def test_only_organisations_changed_by_mutations_are_rebuilt(spark: SparkSession, lake_of: Any) -> None:
    rows = [activity(n, "acme", f"c{n % 2}", day=n) for n in range(4)]
    # A duplicate of the first row, counted once.
    rows += [activity(0, "acme", "c0", event_id="e0"), activity(8, QUOTED, "d"), activity(9, "calm", "d")]
    lake_of.append("engagement", "activities", rows)
    first = build(spark, lake_of)
    assert first.table("top_contacts").duplicates_dropped == 1
    assert top(lake_of) == [
        ("acme", 1, "c0", "c0", 2),
        ("acme", 2, "c1", "c1", 2),
        ("calm", 1, "d", "d", 1),
        (QUOTED, 1, "d", "d", 1),
    ]
    assert all(table.skipped for table in build(spark, lake_of).tables)

    uri = lake_of.lake.storage.spark_uri(paths.table("engagement", "activities"))
    spark.sql(
        f"UPDATE delta.`{uri}` SET contact_id = 'c9', _mutation = 1 WHERE org_id = 'acme' AND origin_contact_id = 'c1'"
    )
    spark.sql(f"UPDATE delta.`{uri}` SET _deleted = true, _mutation = 1 WHERE engagement_id IN ('g2', 'g8')")
    schema = arrow_schema(NAMES_COLUMNS)
    key = paths.table("engagement", "names")
    named = [
        {"org_id": "acme", "id": "c9", "name": "Ada"},
        {"org_id": "acme", "id": "c0", "name": "gone", "_deleted": True},
        {"org_id": "calm", "id": "d", "name": "Dee"},
    ]
    append_rows(lake_of.lake, key, named, schema=schema, partition_by=["org_id"])
    again = build(spark, lake_of)

    assert again.table("activities_per_day").partitions == ("acme", QUOTED)
    assert again.table("engaged_contacts_per_week").partitions == ("acme", QUOTED)
    assert top(lake_of) == [("acme", 1, "c9", "Ada", 2), ("acme", 2, "c0", "c0", 1), ("calm", 1, "d", "Dee", 1)]
    weeks = {row["org_id"]: row for row in lake_of.rows("engagement", "engaged_contacts_per_week")}
    assert {org: (row["contacts"], row["engaged_contacts"], row["activities"]) for org, row in weeks.items()} == {
        "acme": (2, 1, 3),
        "calm": (1, 0, 1),
    }


GOLD = """\
gold:
  tables:
    - {name: colors, sql: gold/colors.sql, reads: [events], partition_by: event_date}
    - {name: rests, sql: gold/rests.sql, reads: [events], partition_by: event_date}
    - {name: again, sql: gold/rests.sql, reads: [events], partition_by: event_date}
"""
SQL = {
    "gold/colors.sql": """
        SELECT event_date, variant_get(_rest, '$.color', 'string') AS color, sum(variant_get(_rest, '$.n', 'int')) AS n
        FROM events GROUP BY ALL
    """,
    "gold/rests.sql": "SELECT event_date, event_id, _rest FROM events",
}


def colored(day: int, event_id: str, color: str, n: int) -> dict[str, Any]:
    return event(day, event_id, _rest=encode_json(f'{{"color": "{color}", "n": {n}, "nested": [{{"x": 1.5}}]}}'))


def test_gold_reads_and_keeps_undeclared_fields(
    spark: SparkSession, make_project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_project({"shop": (SHOP + "    evolve: rescue\n    keep_rest: variant\n" + GOLD, SQL)})
    shop.append("shop", "events", [colored(0, "a", "red", 1), colored(0, "b", "red", 2), event(1, "c")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["colors", "rests"])
    monkeypatch.setattr(table_commit, "MAX_COLLECTED_ROWS", -1)
    rebuild_gold(spark, shop.catalog, "shop", tables=["again"])
    monkeypatch.undo()
    shop.append("shop", "events", [colored(1, "d", "blue", 4)])
    rebuild_gold(spark, shop.catalog, "shop")

    assert sorted((row["color"] or "", row["n"]) for row in shop.rows("shop", "colors")) == [
        ("", None),
        ("blue", 4),
        ("red", 3),
    ]
    for table in ("rests", "again"):
        sql = f"SELECT event_id, _rest.color::VARCHAR, _rest.nested[1].x::DOUBLE, _rest IS NULL FROM shop.{table}"
        connection, _ = connect(shop.catalog, statement=sql)
        with connection:
            assert sorted(connection.execute(sql).fetchall()) == [
                ("a", "red", 1.5, False),
                ("b", "red", 1.5, False),
                ("c", None, None, True),
                ("d", "blue", 1.5, False),
            ]
        uri = shop.lake.storage.spark_uri(paths.table("shop", table))
        read = spark.read.format("delta").load(uri).selectExpr("event_id", "variant_get(_rest, '$.n', 'int')")
        assert sorted(map(tuple, read.collect())) == [("a", 1), ("b", 2), ("c", None), ("d", 4)]
