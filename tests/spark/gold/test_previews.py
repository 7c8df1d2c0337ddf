"""Previews of gold tables, which DuckDB answers, equal the tables that Spark builds of the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.fixtures.comparison import Difference, compare, plain
from deltaworks.fixtures.run import FixtureLake
from deltaworks.fixtures.spec import Fixture, load_fixtures
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.preview import preview_gold
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.project import load_catalog
from tests.unit.gold.translated_expressions import ROWS, VALUES

CATALOG: Catalog = load_catalog("local", root=PROJECT_ROOT)
FIXTURES = [fixture for pipeline in CATALOG.pipelines for fixture in load_fixtures(CATALOG, pipeline)]


def test_spark_has_the_values_that_translations_are_tested_with(spark: SparkSession) -> None:
    columns = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(VALUES))

    (row,) = spark.sql(f"SELECT {columns} FROM {ROWS}").collect()

    assert dict(zip(VALUES, row, strict=True)) == VALUES


def previews(lake: FixtureLake, pipeline: str, tables: list[GoldTableSpec]) -> Mapping[str, list[dict[str, Any]]]:
    """Returns the previewed rows by table, without tables that read unbuilt gold of another pipeline."""
    answers = {}
    for table in tables:
        try:
            answers[table.name] = preview_gold(lake.catalog, pipeline, table.name, all_dates=True).rows.to_pylist()
        except ConfigError as error:
            if error.condition != "GOLD_PREVIEW_UNSUPPORTED":
                raise
    return answers


def differences(
    answers: Mapping[str, list[dict[str, Any]]], built: Mapping[str, list[dict[str, Any]]]
) -> dict[str, list[Difference]]:
    compared = {name: compare([plain(row) for row in built[name]], rows) for name, rows in answers.items()}
    return {name: found for name, found in compared.items() if found}


@pytest.mark.integration
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: f"{fixture.pipeline}-{fixture.name}")
def test_a_preview_equals_the_table_that_spark_builds(spark: SparkSession, tmp_path: Path, fixture: Fixture) -> None:
    lake = FixtureLake(CATALOG, tmp_path, fixture)
    spec = CATALOG.pipeline(fixture.pipeline)
    models = {model.name for model in spec.models}
    tables = [table for table in spec.gold.tables if not models & {*table.reads}]
    for other in fixture.spec.other_pipelines:
        rebuild_gold(spark, lake.catalog, other)
    before = previews(lake, fixture.pipeline, tables)

    rebuild_gold(spark, lake.catalog, fixture.pipeline)

    opened = {table.name: lake.lake.rows(paths.table(fixture.pipeline, table.name)) for table in tables}
    built = {name: [] if rows is None else rows.to_pylist() for name, rows in opened.items()}
    assert {name for name, rows in built.items() if rows} <= set(before), "what Spark builds can be previewed"
    assert differences(before, built) == {}
    assert differences(previews(lake, fixture.pipeline, tables), built) == {}
    assert any(built.values())
