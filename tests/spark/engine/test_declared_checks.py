"""Rules and new fields in full batches: added columns, variants, warnings, and violations that stop the stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from deltaworks.control import paths
from deltaworks.errors import ContractError
from deltaworks.gold.file_scan import FileScan, read_plain_files
from deltaworks.gold.parts import Part
from deltaworks.recovery.reprocess.replace_rows import SparkRowReplacer
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.sources.base import ObjectSlice
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.log import commit_history
from deltaworks.tables.query import connect
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.spark.engine.conftest import Shop

MakeShop = Callable[..., Shop]


def land(shop: Shop, seq: int, *events: dict[str, Any]) -> ObjectSlice:
    """One object of orders with these fields below `params`."""
    path = shop.root / "landing" / f"f{seq}.json"
    path.parent.mkdir(exist_ok=True)
    lines = [{"name": "order", "id": f"{seq}.{n}", "time": 1_700_000_000, "params": e} for n, e in enumerate(events)]
    path.write_text("".join(map(json.dumps, lines)))
    references = [FileReference(seq, f"f{seq}.json", "")]
    return ObjectSlice(references, [path.stat().st_size], {"files": 1, "bytes": 1}, shop.opener())


def orders(**options: Any) -> list[dict[str, Any]]:
    level = {"name": "level", "path": "params.level", "type": "int"}
    return [{"name": "orders", "when": {"name": "order"}, "columns": [level], **options}]


def by_place(shop: Shop, *columns: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows = shop.spark.read.format("delta").load(shop.environment.lake.spark_uri(paths.table("shop", "orders")))
    return {(row["_seq"], row["_position"]): tuple(row[name] for name in columns) for row in rows.collect()}


@pytest.mark.parametrize(
    "point",
    [
        None,
        "prepared",
        # Their twins in test_batches.py end any batch at each point.
        *(pytest.param(point, marks=pytest.mark.integration) for point in ("files_written", "committed:orders")),
    ],
)
def test_a_new_field_becomes_a_column_in_its_own_batch(make_shop: MakeShop, point: str | None) -> None:
    shop = make_shop(tables=orders(evolve="add_columns"))
    shop.processor().process(land(shop, 1, {"level": 1}), 0)
    second = land(shop, 2, {"level": 2, "color": "red", "n": 1}, {"color": 7, "n": 2.5}, {"deep": {"a": 1}})

    if point is not None:
        with pytest.raises(Crash):
            shop.processor(fault=crash_at(point)).process(second, 1)
    processor = shop.processor()
    processor.process(second, 1)
    processor.process(land(shop, 3, {"color": "blue", "n": 3}), 2)

    assert by_place(shop, "level", "color", "n") == {
        (1, 0): (1, None, None),
        (2, 0): (2, None, 1.0),
        (2, 1): (None, None, 2.5),
        (2, 2): (None, None, None),
        (3, 0): (None, "blue", 3.0),
    }
    rescued = {place: json.loads(text) for place, (text,) in by_place(shop, "_rescued").items() if text}
    assert rescued == {
        (2, 0): {"params": {"color": "red"}},
        (2, 1): {"params": {"color": 7}},
        (2, 2): {"params": {"deep": {"a": 1}}},
    }
    table = present(shop.lake.open(paths.table("shop", "orders")))
    history = commit_history(shop.lake, paths.table("shop", "orders"), newest=table.version())
    assert [commit.metadata["operation"] for commit in history].count("add_columns") == 2


def test_warnings_are_in_the_ledger_and_failing_rows_in_quarantine(make_shop: MakeShop) -> None:
    rules = [
        {"name": "low", "check": "level < 10", "on_fail": "warn"},
        {"name": "positive", "check": "level >= 0"},
    ]
    shop = make_shop(tables=orders(rules=rules))

    source = land(shop, 1, {"level": 50}, {"level": -1}, {"level": 60}, {"level": 1})
    report = shop.processor().process(source, 0)

    assert report is not None
    assert report.rule_warnings == '{"orders.low": 2}'
    assert report.table_rows["orders"] == 3
    (row,) = shop.ledger("checkpoint_store")
    assert json.loads(row["source_metadata"])["rule_warnings"] == {"orders.low": 2}
    assert (row["rows"], row["quarantined"]) == (3, 1)


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"rules": [{"name": "positive", "check": "level >= 0", "on_fail": "fail"}]}, "RULE_FAILED"),
        ({"evolve": "fail"}, "FIELD_UNDECLARED"),
    ],
)
def test_a_violation_that_stops_the_stream_commits_nothing_of_the_batch(
    make_shop: MakeShop, options: dict[str, Any], condition: str
) -> None:
    shop = make_shop(tables=[{"name": "events", "catch_all": True}, *orders(**options)])
    processor = shop.processor()
    bad = land(shop, 1, {"level": 1}, {"level": -1, "color": "red"})

    with pytest.raises(ContractError) as caught:
        processor.process(bad, 0)

    assert caught.value.condition == condition
    assert not shop.landed()
    assert not shop.objects.list("control/pipelines/shop/prepared/")


def test_fields_are_rescued_in_tables_spark_writes_too(make_shop: MakeShop) -> None:
    shop = make_shop(tables=orders(evolve="rescue", writer="spark"))

    shop.processor().process(land(shop, 1, {"level": 1, "color": "red"}), 0)

    assert by_place(shop, "level", "_rescued") == {(1, 0): (1, '{"params":{"color":"red"}}')}


OPTIONS: dict[str, dict[str, Any]] = {
    "by_delta_rs": {},
    "by_spark": {"writer": "spark"},
    "clustered": {"writer": "spark", "cluster_by": ["event_name"]},
}


def tables() -> list[dict[str, Any]]:
    level = {"name": "level", "path": "params.level", "type": "int"}
    usual = {"when": {"name": "order"}, "columns": [level], "evolve": "rescue", "keep_rest": "variant"}
    return [{"name": name, **usual, **options} for name, options in OPTIONS.items()]


def address(shop: Shop, table: str) -> str:
    return shop.environment.lake.spark_uri(paths.table("shop", table))


def colors(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Returns fields of each row as Spark reads them."""
    found = rows.selectExpr(
        "_seq", "variant_get(_rest, '$.params.color', 'string')", "variant_get(_rest, '$.params.big', 'decimal(38,0)')"
    )
    return sorted(tuple(row) for row in found.collect())


def by_both(shop: Shop, table: str) -> list[tuple[Any, ...]]:
    """Returns fields of each row, which Spark and DuckDB read alike."""
    by_spark = colors(shop.spark.read.format("delta").load(address(shop, table)))
    sql = f"SELECT _seq, _rest.params.color::VARCHAR, _rest.params.big::DECIMAL(38,0) FROM shop.{table} ORDER BY ALL"
    catalog = Catalog(environment=shop.environment, relays={}, pipelines={"shop": shop.spec}, root=shop.root)
    connection, _ = connect(catalog, statement=sql)
    with connection:
        assert connection.execute(sql).fetchall() == by_spark
    return by_spark


def test_spark_writes_reads_and_rewrites_variants(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(tables=tables())
    processor = shop.processor()
    big = 12345678901234567890123
    processor.process(land(shop, 1, {"level": 1, "color": "red", "big": big}), 0)
    processor.process(land(shop, 2, {"level": 2, "color": "blue"}), 1)
    expected = [(1, "red", big), (2, "blue", None)]

    assert {name: by_both(shop, name) for name in OPTIONS} == dict.fromkeys(OPTIONS, expected)

    for name in OPTIONS:
        layout = "" if name == "clustered" else " ZORDER BY (level)"
        shop.spark.sql(f"OPTIMIZE delta.`{address(shop, name)}`{layout}")
        shop.spark.sql(f"UPDATE delta.`{address(shop, name)}` SET level = 5 WHERE level = 2")
    assert {name: by_both(shop, name) for name in OPTIONS} == dict.fromkeys(OPTIONS, expected)

    opened = present(shop.lake.open(paths.table("shop", "by_delta_rs")))
    scan = FileScan(paths.table("shop", "by_delta_rs"), opened.version(), Part("event_date", None), "event_date")
    plain = present(read_plain_files(shop.spark, shop.lake, opened, scan))
    assert colors(plain) == expected

    rows = present(shop.lake.rows(paths.table("shop", "by_delta_rs")))
    (staged,) = _stage(shop, rows.filter(pa.compute.equal(rows.column("_seq"), 2)))
    key = paths.table("shop", "by_spark")
    SparkRowReplacer(shop.spark, shop.lake, key).replace(
        SeqRanges(((1, 2),)), [staged], step=Step("reprocess", 1), user_metadata="{}"
    )
    assert by_both(shop, "by_spark") == expected[1:]


def _stage(shop: Shop, rows: pa.Table) -> list[str]:
    folder = arrow_path(shop.lake.storage, "staged")
    shop.lake.filesystem.create_dir(folder)
    pq.write_table(rows, f"{folder}/part.parquet")
    return [shop.environment.lake.spark_uri("staged/part.parquet")]
