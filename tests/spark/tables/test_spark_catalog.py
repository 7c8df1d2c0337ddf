"""Tables and views by name in a session's catalog, with the rows that `deltaworks sql` has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from deltaworks.tables.spark_catalog import SparkCatalog, register_tables, registration
from deltaworks.testing import append_rows, catalog_of, declare_pipeline, declare_table, load_project, write_files
from tests.unit.tables.test_query import MUTABLE


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Iterator[Catalog]:
    yield catalog_of(tmp_path, MUTABLE)
    spark.sql("DROP SCHEMA IF EXISTS shop CASCADE")


def append(catalog: Catalog, name: str, rows: pa.Table, *, number: int = 1) -> None:
    append_rows(Lake(catalog.environment.lake), paths.table("shop", name), rows, number=number)


def names(spark: SparkSession) -> set[str]:
    """Returns the tables and views of the database, without temporary views of other tests of the session."""
    return {row["tableName"] for row in spark.sql("SHOW TABLES IN shop").collect() if not row["isTemporary"]}


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def visits(*contacts: tuple[str, bool | None]) -> pa.Table:
    columns = {"org_id": ["o"] * len(contacts), "contact_id": [contact for contact, _ in contacts]}
    return pa.table(columns | {"_deleted": pa.array([deleted for _, deleted in contacts], pa.bool_())})


def test_registered_tables_show_new_rows_without_deleted_ones_and_can_be_registered_again(
    spark: SparkSession, catalog: Catalog
) -> None:
    append(catalog, "visits", visits(("a", None), ("b", True)))
    assert register_tables(spark, catalog) == {}
    assert names(spark) == {"visits", "visits_named"}

    append(catalog, "visits", visits(("c", False)), number=2)
    append(catalog, "requests", pa.table({"id": ["r"]}))
    append(catalog, "requests", pa.table({"id": ["s"]}), number=2)
    register_tables(spark, catalog)

    assert names(spark) == {"visits", "visits_named", "requests"}
    assert rows(spark, "SELECT contact_id FROM shop.visits ORDER BY ALL") == [("a",), ("c",)]
    assert rows(spark, "SELECT id FROM shop.requests VERSION AS OF 1") == [("r",)]


def test_ids_have_their_names_and_columns_that_are_added_later_appear(spark: SparkSession, catalog: Catalog) -> None:
    registered = SparkCatalog(spark)
    append(catalog, "visits", visits(("a", None), ("b", None)))
    registered.register(catalog)
    assert rows(spark, "SELECT contact_name FROM shop.visits_named ORDER BY ALL") == [("a",), ("b",)]

    append(catalog, "names", pa.table({"org_id": ["o", "q"], "id": ["a", "b"], "name": ["Ada", "of another"]}))
    registered.register(catalog)
    location = catalog.environment.lake.spark_uri(paths.table("shop", "visits"))
    spark.sql(f"ALTER TABLE delta.`{location}` ADD COLUMN page STRING")

    shown = rows(spark, "SELECT contact_id, contact_name, page FROM shop.visits_named ORDER BY ALL")
    assert shown == [("a", "Ada", None), ("b", "b", None)]


def test_a_dropped_name_leaves_the_table_and_the_printed_statements_bring_it_back(
    spark: SparkSession, catalog: Catalog
) -> None:
    append(catalog, "requests", pa.table({"id": ["r"]}))
    register_tables(spark, catalog)

    spark.sql("DROP TABLE shop.requests")
    assert names(spark) == set()
    for statement in registration(catalog).script:
        spark.sql(statement)

    assert rows(spark, "SELECT id FROM shop.requests") == [("r",)]


def test_file_quarantine_has_the_rows_that_the_engine_without_spark_shows(
    spark: SparkSession, catalog: Catalog
) -> None:
    columns = {"quarantine_date": [1, 1], "object_key": ["k", "l"], "_ingested_at": [2, 2], "_batch_id": [3, 3]}
    reasons = [[{"code": "empty", "detail": "no bytes"}], [{"code": "missing", "detail": "id"}]]
    append(catalog, "quarantine", pa.table(columns | {"reasons": reasons, "_seq": [4, 5], "_position": [-1, 0]}))
    register_tables(spark, catalog)

    query = "SELECT * FROM shop.file_quarantine"
    assert rows(spark, query) == connect(catalog)[0].sql(query).fetchall()
    assert rows(spark, query) == [(1, "k", "empty", "no bytes", 2, 3, 4)]


def test_a_changed_view_is_replaced_and_one_with_other_values_in_spark_is_excluded(
    spark: SparkSession, tmp_path: Path
) -> None:
    views = [{"name": name, "sql": f"{name}.sql", "reads": ["orders"]} for name in ("large", "age", "wrong")]
    folder = "pipelines/shop"
    files = {
        f"{folder}/large.sql": "SELECT id FROM orders WHERE id > 5",
        f"{folder}/age.sql": "SELECT max(day) - min(day) AS days FROM orders",
        f"{folder}/wrong.sql": "SELECT CAST(true AS BIGINT) AS one FROM orders",
    }
    catalog = load_project(tmp_path, declare_pipeline(declare_table("orders", "id long"), views=views), files=files)
    days = pa.array([1, 3, 9], pa.date32())
    append(catalog, "orders", pa.table({"id": [4, 6, 8], "day": days}))
    registered = SparkCatalog(spark)

    try:
        excluded = registered.register(catalog)
        assert excluded["shop.age"] == "in Spark days would be an interval"
        assert "DATATYPE_MISMATCH" in excluded["shop.wrong"]
        assert names(spark) == {"orders", "large"}
        write_files(tmp_path / "include", {f"{folder}/large.sql": "SELECT id FROM orders WHERE id > 7"})
        registered.register(catalog)
        assert rows(spark, "SELECT * FROM shop.large") == [(8,)]
        write_files(tmp_path / "include", {f"{folder}/large.sql": "SELECT round(id) AS id FROM orders"})
        assert registered.register(catalog)["shop.large"] == "Spark has no equal of ROUND(id)"
        assert names(spark) == {"orders"}
    finally:
        spark.sql("DROP SCHEMA IF EXISTS shop CASCADE")
