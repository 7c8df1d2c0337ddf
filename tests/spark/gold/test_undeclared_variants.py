"""Gold tables over undeclared fields that are variants, and gold tables that keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold import table_build
from deltaworks.gold.build import rebuild_gold
from deltaworks.tables.query import connect
from deltaworks.tables.variant import encode_json
from tests.spark.gold.shop_data import SHOP, event

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
    monkeypatch.setattr(table_build, "MAX_COLLECTED_ROWS", -1)
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
