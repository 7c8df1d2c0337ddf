"""A clustered table: created by Spark, clustered by OPTIMIZE once, then skipped."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.table_set import TableSet
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.tables.log import commit_history
from tests.spark.made_pulse import HEAD

PULSE = (
    HEAD
    + """\
tables:
  - {name: events, catch_all: true, cluster_by: [event_name, event_time], writer: spark}
"""
)
KEY = paths.table("pulse", "events")
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)


@pytest.mark.integration
def test_a_new_clustered_table_is_clustered_once(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = make_project({"pulse": (PULSE, {})})
    tables = TableSet(project.lake, project.spec("pulse"), spark=spark)
    tables.open()
    assert tables.problems == {}
    handle = tables.handles["events"]
    assert "clustering" in (handle.protocol().writer_features or [])
    assert handle.metadata().configuration["delta.checkpointInterval"] == "50"

    uri = project.lake.storage.spark_uri(KEY)
    for day in range(3):
        row = {"event_time": START + dt.timedelta(days=day), "event_id": f"e{day}", "event_name": "a"}
        frame = spark.createDataFrame([row], "event_time timestamp, event_id string, event_name string")
        frame.write.format("delta").mode("append").save(uri)
    (first,) = optimize_tables(lambda: spark, project.catalog, "pulse", tables=["events"])
    (second,) = optimize_tables(lambda: spark, project.catalog, "pulse", tables=["events"])

    assert (first.zordered, first.files_before, first.files_after) == (1, 3, 1)
    assert second.skipped
    newest = next(commit_history(project.lake, KEY, newest=project.lake.open(KEY).version()))
    assert newest.operation == "OPTIMIZE"
    assert sorted(row["event_id"] for row in project.rows("pulse", "events")) == ["e0", "e1", "e2"]
