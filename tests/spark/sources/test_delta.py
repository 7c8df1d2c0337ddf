"""A pipeline that reads a Delta table: landed rows, and tables it rejects.

The points of a batch marked `integration` have their twins in tests/spark/engine/test_batches.py, which ends a batch
at each point without a query, whatever its source is.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ContractError
from deltaworks.testing import present
from tests.crashes import crash_at
from tests.spark.conftest import Project
from tests.spark.sources.delta_harness import ProjectOf, address, numbers, reading, run, sell


@pytest.fixture
def project_of(make_project: Callable[..., Project]) -> ProjectOf:
    return partial(reading, make_project)


def test_rows_of_a_table_land_once_with_their_values_unchanged(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of(max_files_per_batch=1)
    sell(project, 1, 2)
    sell(project, 3)

    first = run(spark, project)
    sell(project, 4)
    second = run(spark, project)

    assert numbers(project) == [1, 2, 3, 4]
    assert (first.batches, second.batches) == (2, 1), "a batch takes no more files than it may"
    names = {"number": "number", "price": "price", "sold_at": "at", "tags": "tags", "event_time": "event_time"}
    copies = sorted(project.rows("reader", "copies"), key=lambda row: row["number"])
    sold = sorted(project.rows("writer", "sales"), key=lambda row: row["number"])
    assert [{name: row[name] for name in names} for row in copies] == [
        {name: row[of] for name, of in names.items()} for row in sold
    ]
    assert len({(row["_seq"], row["_position"]) for row in copies}) == 4


def test_a_row_with_conversion_errors_is_in_quarantine_as_json(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of()
    project.append(
        "writer", "sales", [{"event_id": "e", "event_time": dt.datetime(2024, 5, 1, tzinfo=dt.UTC), "number": None}]
    )

    run(spark, project)

    [row] = project.rows("reader", "quarantine")
    assert [reason["code"] for reason in row["reasons"]] == ["missing_required"]
    assert (json.loads(row["raw"])["event_id"], row["object_key"]) == ("e", "writer/sales")


@pytest.mark.parametrize(
    "point", ["committed", *(pytest.param(point, marks=pytest.mark.integration) for point in ("prepared", "completed"))]
)
def test_a_run_that_ends_in_a_batch_neither_loses_nor_duplicates_rows(
    spark: SparkSession, project_of: ProjectOf, point: str
) -> None:
    project = project_of(max_files_per_batch=1)
    sell(project, 1, 2)
    sell(project, 3)

    with pytest.raises(Exception, match=point):
        run(spark, project, fault=crash_at(point))
    run(spark, project)

    assert numbers(project) == [1, 2, 3]


def test_a_query_resumes_between_versions_after_a_lost_checkpoint(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of(starting_version=0)
    sell(project, 1)
    sell(project, 2)
    run(spark, project)

    shutil.rmtree(Path(project.catalog.environment.lake.prefix) / paths.checkpoint("reader", 1, 1))
    sell(project, 3)
    run(spark, project)

    assert numbers(project) == [1, 2, 3]


def test_only_rows_after_a_version_are_read(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of(starting_version=2)
    sell(project, 1)
    sell(project, 2)

    run(spark, project)

    assert numbers(project) == [2]


def test_a_merged_table_is_rejected_with_an_alternative(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of()
    sell(project, 1, 2)
    present(project.lake.open(paths.table("writer", "sales"))).delete("number = 1")

    with pytest.raises(ContractError) as refused:
        run(spark, project)

    assert refused.value.condition == "DELTA_SOURCE_REWRITTEN"
    assert "change_feed" in (refused.value.hint or "")


def test_a_later_merge_stops_the_stream_or_is_skipped(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of()
    sell(project, 1, 2)
    run(spark, project)
    present(project.lake.open(paths.table("writer", "sales"))).update({"number": "9"}, predicate="number = 1")
    sell(project, 3)

    with pytest.raises(StreamingQueryException) as stopped:
        run(spark, project)
    assert as_deltaworks_error(stopped.value).condition == "DELTA_SOURCE_REWRITTEN"
    skipping = project_of(skip_change_commits=True)
    run(spark, skipping)

    assert numbers(skipping) == [1, 2, 3]


def test_changes_are_read_from_the_feed(spark: SparkSession, project_of: ProjectOf) -> None:
    project = project_of(change_feed=True)
    sell(project, 1, 2)
    with pytest.raises(ContractError) as refused:
        run(spark, project)
    assert refused.value.condition == "DELTA_SOURCE_WITHOUT_CHANGES"

    spark.sql(f"ALTER TABLE delta.`{address(project)}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    run(spark, project)
    spark.sql(f"UPDATE delta.`{address(project)}` SET number = 9 WHERE number = 1")
    run(spark, project)

    found = sorted((row["change"], row["number"]) for row in project.rows("reader", "copies"))
    assert found == [("insert", 1), ("insert", 2), ("update_postimage", 9), ("update_preimage", 1)]


@pytest.mark.parametrize(("table", "condition"), [("nothing", "DELTA_SOURCE_MISSING")])
def test_a_missing_table_is_named(spark: SparkSession, project_of: ProjectOf, table: str, condition: str) -> None:
    with pytest.raises(ContractError) as refused:
        run(spark, project_of(table=table))

    assert refused.value.condition == condition
