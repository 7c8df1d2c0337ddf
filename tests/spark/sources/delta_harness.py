"""A table that one pipeline writes and another reads as its source."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.runner import IngestRun, RunResult
from deltaworks.operations.stream_parts import STREAM_PARTS
from tests.batch_points import call_at_points
from tests.spark.conftest import Project

WRITER = """\
pipeline: writer
description: what is read
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {constant: sale}, time: {path: time, unit: epoch_seconds}}
tables:
  - name: sales
    catch_all: true
    columns:
      - {name: number, path: number, type: long}
      - {name: price, path: price, type: "decimal(38,10)"}
      - {name: at, path: at, type: timestamp}
      - {name: tags, path: tags, type: "array<struct<name:string,share:decimal(20,5)>>"}
gold:
  tables: [{name: totals, sql: totals.sql, reads: [sales], partition_by: event_date}]
"""
READER = """\
pipeline: reader
description: what reads it
owner: tests
source: {source}
event: {{name: {{constant: sale}}, time: {{path: event_time}}, id: [event_id]}}
tables:
  - name: copies
    catch_all: true
    columns:
      - {{name: number, path: number, type: long, required: true}}
      - {{name: price, path: price, type: "decimal(38,10)"}}
      - {{name: sold_at, path: at, type: timestamp}}
      - {{name: tags, path: tags, type: "array<struct<name:string,share:decimal(20,5)>>"}}
      - {{name: change, path: _change_type, type: string}}
stream: {{tasks_per_batch: 2, lease_ttl_seconds: 3}}
"""
ProjectOf = Callable[..., Project]


def reading(make_project: Callable[..., Project], **changes: Any) -> Project:
    """A project whose pipeline `reader` reads the table `sales` of the pipeline `writer`."""
    source = {"kind": "delta", "pipeline": "writer", "table": "sales"} | changes
    declared = READER.format(source=json.dumps(source))
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
