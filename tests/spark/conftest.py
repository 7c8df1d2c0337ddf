"""Fixtures: one Spark session for all tests, and a small project on local disk to run operations on."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.sources import base
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import build_session
from deltaworks.testing import load_project, table_rows


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session shared by all Spark tests: local, two shuffle partitions, Deltaworks' settings."""
    # Connections are closed when Python ends, and pytest's streams are closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    here = StorageSpec(root="file:///deltaworks-tests")
    environment = EnvironmentSpec(environment="tests", lake=here, landing=here, messaging=AwsSpec())
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        # A query without new input looks for it every ten milliseconds by default, and tests wait beside such queries.
        "spark.sql.streaming.pollingDelay": "50ms",
        # Tables here have tens of rows, so compiling Java for a query takes longer than interpreting it. The demo, the
        # benchmarks and tests with separate processes run compiled.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    # Hundreds of small queries never reach well-compiled code, and a parallel garbage collector would only take
    # processors from the tests.
    java = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC -Xms512m -Xmn256m"
    spark = {"conf": conf, "java_options": java}
    environment = environment.model_copy(update={"spark": environment.spark.model_copy(update=spark)})
    session = build_session(environment, app_name="tests", master="local[2]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes several tasks read the few events of a test, like those of a large batch."""
    monkeypatch.setattr(base, "MIN_BYTES_PER_TASK", 1)


@dataclass
class Project:
    """A project in a temporary folder whose bronze tables are filled by the test."""

    root: Path
    catalog: Catalog
    lake: Lake
    _ordinals: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def spec(self, pipeline: str) -> PipelineSpec:
        """Returns a pipeline's spec."""
        return self.catalog.pipeline(pipeline)

    def append(self, pipeline: str, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Appends events to a bronze table like the stream does; returns the new version.

        A row gives `event_id`, `event_time` and its own columns; `_seq` grows with each call unless given.
        """
        columns = self.spec(pipeline).table(table).column_types()
        schema, batch = arrow_schema(columns), next(self._ordinals)
        key = paths.table(pipeline, table)
        made = user_metadata(pipeline=pipeline, batch=batch, operation="ingest")
        opened = self.lake.ensure(
            key, schema, user_metadata=made, partition_by=self.spec(pipeline).table(table).partition_by
        )
        filled = [_envelope(row, batch, position) for position, row in enumerate(rows)]
        data = pa.Table.from_pylist(filled, schema=schema)
        step = Step(f"{pipeline}/1/{table}", batch)
        return self.lake.append(opened, key, data, step=step, user_metadata=made).version

    def rows(self, pipeline: str, table: str) -> list[dict[str, Any]]:
        """Returns the rows of a table, read without Spark."""
        return table_rows(self.lake, pipeline, table)


def _envelope(row: Mapping[str, Any], batch: int, position: int) -> dict[str, Any]:
    time: dt.datetime = row["event_time"]
    defaults = {
        "event_name": "event",
        "event_date": time.date(),
        "_ingested_at": dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
        "_batch_id": batch,
        "_seq": batch,
        "_position": position,
    }
    return {**defaults, **row}


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project from pipeline declarations: `make_project({"shop": (yaml, {"gold/x.sql": sql})})`."""

    def make(pipelines: Mapping[str, tuple[str, Mapping[str, str]]], **sections: Any) -> Project:
        files = {f"pipelines/{name}/pipeline.yaml": declaration for name, (declaration, _) in pipelines.items()}
        for name, (_, sql) in pipelines.items():
            files |= {f"pipelines/{name}/{path}": text for path, text in sql.items()}
        catalog = load_project(tmp_path / "project", lake=tmp_path, files=files, **sections)
        return Project(catalog.root, catalog, Lake(catalog.environment.lake))

    return make
