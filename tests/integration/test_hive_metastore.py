"""A Hive metastore as a catalog: Spark's own, on an embedded Derby, in a process of its own as the night has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import json, sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from deltaworks.catalogs.hive import hive_settings
from deltaworks.catalogs.sync import sync_pipeline
from deltaworks.control import paths
from deltaworks.specs.environment_sections import HiveCatalogSpec
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake, remove_folder
from deltaworks.tables.spark_session import build_session
from deltaworks.testing import append_rows, catalog_of
from tests.unit.tables.test_query import MUTABLE

folder = Path(sys.argv[1])
conf = {
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.metastore.schema.verification": "false",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    "spark.sql.shuffle.partitions": "2",
}
hive = HiveCatalogSpec(kind="hive", name="metastore", conf=conf)
project = catalog_of(folder / "lake", MUTABLE)
environment = project.environment.model_copy(update={"catalogs": (hive,)})
project = replace(project, environment=environment)
spec, lake = project.pipeline("shop"), Lake(environment.lake)
for name in ("requests", "visits"):
    schema = arrow_schema(spec.table(name).column_types())
    ensure_described(lake, paths.table("shop", name), schema, table_descriptions(spec)[name], user_metadata="{}")
rows = pa.table({"event_id": ["a", "b"]})
append_rows(lake, paths.table("shop", "requests"), rows)


def session(declared):
    spark = environment.spark.model_copy(update={"conf": {**environment.spark.conf, **hive_settings(declared)}})
    return build_session(environment.model_copy(update={"spark": spark}), app_name="hive", master="local[1]")


def sync(**options):
    (result,) = sync_pipeline(project, "shop", open_session=session, **options)
    if result.error is not None:
        raise result.error
    return {change.table: [change.action, change.applied] for change in result.changes}


seen = {"first": sync(), "second": sync()}
spark = session(hive)
seen["implementation"] = spark.conf.get("spark.sql.catalogImplementation")
seen["rows"] = sorted(row[0] for row in spark.sql("SELECT event_id FROM shop.requests").collect())
described = spark.sql("DESCRIBE EXTENDED shop.requests").collect()
seen["comments"] = {row["col_name"]: row["comment"] for row in described if row["comment"]}
seen["type"] = [row["data_type"] for row in described if row["col_name"] == "Type"]
remove_folder(environment.lake, "tables/shop/visits")
seen["kept"] = sync()
seen["dropped"] = sync(drop=True)
seen["tables"] = sorted(row["tableName"] for row in spark.sql("SHOW TABLES IN shop").collect())
spark.stop()
print("SEEN " + json.dumps(seen))
"""


def test_tables_are_registered_read_and_dropped_by_name(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    seen = json.loads(run.stdout.split("SEEN ", 1)[1])

    assert seen["implementation"] == "hive"
    assert seen["first"] == {"shop.requests": ["create", True], "shop.visits": ["create", True]}
    assert seen["second"] == {"shop.requests": ["none", False], "shop.visits": ["none", False]}
    assert seen["rows"] == ["a", "b"]
    assert seen["comments"]["event_time"] == "Time of the event, UTC"
    assert seen["type"] == ["EXTERNAL"]
    assert seen["kept"]["shop.visits"] == ["drop", False]
    assert seen["dropped"]["shop.visits"] == ["drop", True]
    assert seen["tables"] == ["requests"]
