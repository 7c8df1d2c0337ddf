"""Tables by name in a session's catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import register_tables, registration_statements
from deltaworks.testing import append_rows, catalog_of
from tests.unit.tables.test_query import MUTABLE


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Iterator[Catalog]:
    yield catalog_of(tmp_path, MUTABLE)
    spark.sql("DROP SCHEMA IF EXISTS shop CASCADE")


def append(catalog: Catalog, name: str, rows: pa.Table, *, number: int) -> None:
    append_rows(Lake(catalog.environment.lake), paths.table("shop", name), rows, number=number)


def names(spark: SparkSession) -> set[str]:
    """Returns the tables and views of the database, without temporary views of other tests of the session."""
    return {row["tableName"] for row in spark.sql("SHOW TABLES IN shop").collect() if not row["isTemporary"]}


def test_registered_tables_show_new_rows_and_can_be_registered_again(spark: SparkSession, catalog: Catalog) -> None:
    append(catalog, "visits", pa.table({"id": ["a", "b"], "_deleted": [None, True]}), number=1)
    assert register_tables(spark, catalog) == 2
    assert names(spark) == {"visits", "visits_current"}

    append(catalog, "visits", pa.table({"id": ["c"], "_deleted": pa.array([None], pa.bool_())}), number=2)
    append(catalog, "requests", pa.table({"id": ["r"]}), number=1)
    assert register_tables(spark, catalog) == 3

    assert names(spark) == {"visits", "visits_current", "requests"}
    assert spark.sql("SELECT count(*) FROM shop.visits").first()[0] == 3  # type: ignore[index]
    assert [row["id"] for row in spark.sql("SELECT id FROM shop.visits_current ORDER BY id").collect()] == ["a", "c"]
    past = spark.sql("SELECT id FROM shop.visits VERSION AS OF 1 ORDER BY id").collect()
    assert [row["id"] for row in past] == ["a", "b"]


def test_a_dropped_name_leaves_the_table_and_the_printed_statements_bring_it_back(
    spark: SparkSession, catalog: Catalog
) -> None:
    append(catalog, "requests", pa.table({"id": ["r"]}), number=1)
    register_tables(spark, catalog)

    spark.sql("DROP TABLE shop.requests")
    assert names(spark) == set()
    for statement in registration_statements(catalog)[0]:
        spark.sql(statement)

    assert [row["id"] for row in spark.table("shop.requests").collect()] == ["r"]
