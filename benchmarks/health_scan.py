"""`health_scan`: the time to determine the health of 1,000 tables.

Every table has 21 commits, a checkpoint and 60 files in three partitions. Both implementations read the same logs on
local disk.

- `tables_1000_vs_spark`: the health of all tables as `deltaworks tables` reads it (files, sizes, partitions, log, last
  operations, score), against reading the number of files and bytes of each in a running Spark session
  (`DESCRIBE DETAIL`), with one thread per core, which was the fastest setting. Since Spark takes minutes for 1,000
  tables, it reads every fifth (`opened` in all) and its time is extrapolated.

Starting Spark is not counted. Its log cache is emptied before each repetition, since an hourly scan reads new commits.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.versions import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.maintenance.table_health.catalog_tables import DeclaredTable
    from deltaworks.specs.storage import StorageSpec

TABLES = 1_000
_SAMPLED_TABLES = 200
_COMMITS = 20
_PARTITIONS = ("2026-01-01", "2026-01-02", "2026-01-03")


def run(options: Options) -> list[Result]:
    """Measures the comparison."""
    from benchmarks import sides, storages

    with storages.local_disk().new_root() as storage:
        tables = make_tables(storage, TABLES)
        options.progress(f"{BENCHMARK.name}: made {len(tables):,} tables")
        spark = sides.session()
        ours = Side("deltaworks", lambda clock: _scan(storage, tables, clock))
        other = Side("spark_describe_detail", lambda clock: _describe(spark, storage, tables, clock))
        sizes = {"tables": len(tables), "commits": _COMMITS + 1, "files": _COMMITS * len(_PARTITIONS)}
        comparison = Comparison(metric="tables_1000_vs_spark", ours=ours, other=other, sizes=sizes)
        results = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
        spark.stop()
    return results


def make_tables(storage: StorageSpec, count: int) -> list[DeclaredTable]:
    """Creates tables with equal logs. They have no data files, since neither implementation opens any."""
    import datetime as dt

    import pyarrow as pa

    from deltaworks.control.provenance import user_metadata
    from deltaworks.maintenance.table_health.catalog_tables import DeclaredTable
    from deltaworks.tables.commit import Step
    from deltaworks.tables.lake import Lake

    lake, first = Lake(storage), "tables/scan/t0000"
    made = user_metadata(pipeline="scan", batch=0, operation="ingest")
    schema = pa.schema([("event_date", pa.date32()), ("value", pa.int64()), ("name", pa.string())])
    table = lake.ensure(first, schema, user_metadata=made, partition_by=["event_date"])
    days = [dt.date.fromisoformat(day) for day in _PARTITIONS]
    for batch in range(1, _COMMITS + 1):
        rows = pa.table({"event_date": days, "value": [batch] * 3, "name": [str(batch)] * 3}, schema=schema)
        lake.append(table, first, rows, step=Step("scan/1", batch), user_metadata=made)
        if batch == _COMMITS // 2:
            table.create_checkpoint()
    log = Path(storage.prefix, first, "_delta_log")
    tables = [
        DeclaredTable("scan", f"t{number:04d}", "bronze", f"tables/scan/t{number:04d}") for number in range(count)
    ]
    for copy in tables[1:]:
        shutil.copytree(log, Path(storage.prefix, copy.key, "_delta_log"))
    return tables


def _scan(storage: StorageSpec, tables: list[DeclaredTable], clock: Clock) -> None:
    from deltaworks.maintenance.table_health.catalog_tables import with_health
    from deltaworks.maintenance.table_health.report import score

    with clock:
        scanned = with_health(storage, tables)
        scores = [score(table.health) for table in scanned if table.health is not None]
    files = {table.health.files for table in scanned if table.health is not None}
    _check(len(scores), files, of=TABLES)


def _describe(spark: SparkSession, storage: StorageSpec, tables: list[DeclaredTable], clock: Clock) -> None:
    def files_of(table: DeclaredTable) -> int:
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{storage.spark_uri(table.key)}`").first()
        return int(detail["numFiles"]) if detail is not None else -1

    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    opened = tables[:: TABLES // _SAMPLED_TABLES]
    with clock, ThreadPoolExecutor(cores()) as pool:
        file_counts = list(pool.map(files_of, opened))
    clock.seconds *= TABLES / _SAMPLED_TABLES
    clock.record(opened=len(opened))
    _check(len(file_counts), set(file_counts), of=_SAMPLED_TABLES)


def _check(tables: int, files: set[int], *, of: int) -> None:
    if tables != of or files != {_COMMITS * len(_PARTITIONS)}:
        raise RuntimeError(f"{tables} tables were read, with {sorted(files)} files")


BENCHMARK = Benchmark(
    name="health_scan",
    summary="the health of 1,000 tables from their logs, against opening the same tables in Spark",
    run=run,
    tiny=TinySize(constants={"TABLES": 20, "_SAMPLED_TABLES": 4}),
)
