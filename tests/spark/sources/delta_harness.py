"""A table that one pipeline writes and another reads as its source."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.runner import IngestRun, RunResult
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.testing import declare_pipeline, declare_table
from tests.batch_points import call_at_points
from tests.spark.conftest import Project

TAGS = "array<struct<name:string,share:decimal(20,5)>>"
WRITER = declare_pipeline(
    declare_table("sales", "number long", "price decimal(38,10)", "at timestamp", f"tags {TAGS}"),
    pipeline="writer",
    event={"name": {"constant": "sale"}, "time": {"path": "time", "unit": "epoch_seconds"}},
    gold={"tables": [{"name": "totals", "sql": "totals.sql", "reads": ["sales"], "partition_by": "event_date"}]},
)
COPIES = declare_table(
    "copies",
    "number long required",
    "price decimal(38,10)",
    "sold_at timestamp from at",
    f"tags {TAGS}",
    "change string from _change_type",
)
ProjectOf = Callable[..., Project]


def reading(make_project: Callable[..., Project], **changes: Any) -> Project:
    """A project whose pipeline `reader` reads the table `sales` of the pipeline `writer`."""
    source = {"kind": "delta", "pipeline": "writer", "table": "sales"} | changes
    declared = declare_pipeline(
        COPIES,
        pipeline="reader",
        source=source,
        event={"name": {"constant": "sale"}, "time": {"path": "event_time"}, "id": ["event_id"]},
        stream={"tasks_per_batch": 2, "lease_ttl_seconds": 3},
    )
    return make_project({"writer": (WRITER, {"totals.sql": "select 1"}), "reader": (declared, {})})


def sell(project: Project, *numbers: int) -> None:
    at = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    rows = [
        {
            "event_id": f"e{number}",
            "event_time": at,
            "number": number,
            "price": Decimal("1234567890123456789.0123456789") + number,
            "at": at,
            "tags": [{"name": "ü", "share": Decimal("0.00001")}],
        }
        for number in numbers
    ]
    project.append("writer", "sales", rows)


def run(spark: SparkSession, project: Project, fault: Callable[[str], None] = lambda point: None) -> RunResult:
    with call_at_points(fault):
        return IngestRun(spark, project.catalog, "reader", parts=STREAM_PARTS, available_now=True).run()


def numbers(project: Project) -> list[int]:
    return sorted(row["number"] for row in project.rows("reader", "copies"))


def address(project: Project) -> str:
    return project.catalog.environment.lake.spark_uri(paths.table("writer", "sales"))
