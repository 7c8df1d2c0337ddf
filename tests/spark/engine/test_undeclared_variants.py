"""Undeclared fields as variants in tables that Spark writes, clusters, updates and optimizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from deltaworks.control import paths
from deltaworks.gold.file_scan import FileScan, read_plain_files
from deltaworks.gold.parts import Part
from deltaworks.recovery.reprocess.replace_rows import SparkRowReplacer
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.query import connect
from tests.spark.engine.conftest import Shop
from tests.spark.engine.test_declared_checks import land

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

    opened = shop.lake.open(paths.table("shop", "by_delta_rs"))
    assert opened is not None
    scan = FileScan(paths.table("shop", "by_delta_rs"), opened.version(), Part("event_date", None), "event_date")
    plain = read_plain_files(shop.spark, shop.lake, opened, scan)
    assert plain is not None
    assert colors(plain) == expected

    rows = shop.lake.rows(paths.table("shop", "by_delta_rs"))
    assert rows is not None
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
