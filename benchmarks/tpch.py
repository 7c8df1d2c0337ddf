"""`tpch`: the 22 queries of TPC-H by Spark over tables Z-ordered by the nightly OPTIMIZE, against compacted tables.

Tables and queries come from DuckDB's TPC-H extension, in a separate environment (`benchmarks.tpch_rows`). Each table is
written in small files and copied. Deltaworks: the nightly Z-order by the columns a declaration would name. Baseline:
Delta's OPTIMIZE without Z-order, to files of the same size.

- `queries_vs_compaction`: seconds of all 22 queries, each collected; parts contain the seconds per query. Both layouts
  must return the same rows.

`--events` is the number of rows of the largest table, which has six million at scale factor 1.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environments import python_with
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.tables.lake import Lake

_DUCKDB = "1.5.5"
_PINS = (f"duckdb=={_DUCKDB}", f"duckdb-extension-tpch=={_DUCKDB}")
_SCRIPT = Path(__file__).with_name("tpch_rows.py")
_ROWS_AT_SCALE_ONE = 6_000_000
_LANDED_FILES, _FILES = 40, 8
#: Z-order columns of each table. Small tables have one file and are not Z-ordered.
_ZORDER = {
    "lineitem": ("l_shipdate", "l_orderkey"),
    "orders": ("o_orderdate", "o_orderkey"),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey",),
    "supplier": ("s_suppkey",),
    "nation": ("n_nationkey",),
    "region": ("r_regionkey",),
}


def run(options: Options) -> list[Result]:
    """Creates both layouts once and queries them in turns. Returns no result if DuckDB's extension cannot be
    installed."""
    from benchmarks import sides
    from benchmarks.scratch_folders import scratch_folder

    python = python_with(_PINS, name="tpch", benchmark=BENCHMARK.name, progress=options.progress)
    if python is None:
        return []
    spark = sides.session()
    try:
        with scratch_folder(BENCHMARK.name) as folder:
            queries = _make(python, folder / "rows", options)
            ours, other = _write_layouts(spark, folder, options)
            answers: dict[int, list[tuple[Any, ...]]] = {}
            comparison = Comparison(
                metric="queries_vs_compaction",
                ours=Side("zordered", _Queries(spark, ours, queries, answers)),
                other=Side("compacted", _Queries(spark, other, queries, answers)),
                sizes={"rows": options.events, "queries": len(queries)},
            )
            return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


def _make(python: Path, folder: Path, options: Options) -> list[str]:
    """Creates the rows of the tables and returns the queries in Spark's dialect."""
    import sqlglot

    folder.mkdir(parents=True)
    command = [str(python), str(_SCRIPT), str(folder), str(options.events / _ROWS_AT_SCALE_ONE)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    options.progress(f"{BENCHMARK.name}: created the tables, the largest with {options.events:,} rows")
    return [sqlglot.transpile(query, read="duckdb", write="spark")[0] for query in json.loads(made.stdout)]


def _write_layouts(spark: SparkSession, folder: Path, options: Options) -> tuple[Path, Path]:
    """Writes the tables in both layouts and returns their folders."""
    from deltaworks.control import paths
    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables.lake import Lake

    lake, other = Lake(StorageSpec(root=f"file://{folder}/lake")), folder / "compacted"
    ours = folder / "lake" / Path(paths.table("bench", "region")).parent
    for name, columns in _ZORDER.items():
        rows = spark.read.parquet(f"file://{folder}/rows/{name}.parquet")
        files = _LANDED_FILES if rows.count() > 1_000 else 1
        rows.repartitionByRange(files, columns[-1]).write.format("delta").save(f"file://{ours / name}")
        shutil.copytree(ours / name, other / name)
        size = sum(path.stat().st_size for path in (ours / name).glob("*.parquet"))
        target = max(64 << 10, size // _FILES)
        if files > 1:
            _zorder(spark, lake, name, rows.dtypes, target)
        with _file_size(spark, target):
            spark.sql(f"OPTIMIZE delta.`file://{other / name}`").collect()
    options.progress(f"{BENCHMARK.name}: wrote both layouts")
    return ours, other


def _zorder(spark: SparkSession, lake: Lake, name: str, types: list[tuple[str, str]], target: int) -> None:
    from deltaworks.control import paths
    from deltaworks.control.clock import utc_now
    from deltaworks.control.home import PipelineHome
    from deltaworks.maintenance.layout import Layout
    from deltaworks.maintenance.optimize import OptimizeResult, TableOptimizer
    from deltaworks.maintenance.partition_choice import OptimizePolicy, choose_partitions
    from deltaworks.maintenance.table_health.measure import table_health
    from deltaworks.maintenance.zorder_ledger import ZOrderLedger, read_ledger

    layout = Layout(name=name, partition_by=(), zorder_by=_ZORDER[name], types=dict(types))
    policy = OptimizePolicy(target_file_bytes=target, row_group_bytes=0)
    health, order = table_health(lake, paths.table("bench", name)), read_ledger(lake, "bench").table_state(name)
    # Uses a later time, since the selection skips recently written partitions.
    later = utc_now() + dt.timedelta(days=2)
    choice = choose_partitions(health, layout, ledger=order, now=later, policy=policy)
    ledger = ZOrderLedger(lake, PipelineHome.open(lake.storage, "bench"))
    done = TableOptimizer(lambda: spark, lake, ledger, "bench", layout, policy=policy).run(
        choice.partitions, OptimizeResult(table=name, round="daily")
    )
    if done.zordered != 1:
        raise RuntimeError(f"{name} was not Z-ordered: {choice.reason}")


@contextmanager
def _file_size(spark: SparkSession, target: int) -> Iterator[None]:
    settings = [f"spark.databricks.delta.optimize.{name}" for name in ("maxFileSize", "minFileSize")]
    for name in settings:
        spark.conf.set(name, str(target))
    yield
    for name in settings:
        spark.conf.unset(name)


@dataclass(frozen=True, slots=True)
class _Queries:
    """Runs all queries over the tables of a folder. Keeps the first rows of each query and requires later ones to be
    equal.
    """

    spark: SparkSession
    folder: Path
    queries: list[str]
    answers: dict[int, list[tuple[Any, ...]]]

    def __call__(self, clock: Clock) -> None:
        for name in _ZORDER:
            self.spark.read.format("delta").load(f"file://{self.folder / name}").createOrReplaceTempView(name)
        for number, query in enumerate(self.queries, 1):
            before = clock.seconds
            with clock:
                rows = self.spark.sql(query).collect()
            clock.record(**{f"q{number:02}_seconds": clock.seconds - before})
            answer = sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)
            if self.answers.setdefault(number, answer) != answer:
                raise RuntimeError(f"query {number} returned different rows in two runs")


def _plain(value: Any) -> Any:
    """Returns a value for comparison. Rounds floats and decimals, since sums depend on the order of addition."""
    return round(float(value), 4) if isinstance(value, float | Decimal) else value


BENCHMARK = Benchmark(
    name="tpch",
    summary="the TPC-H queries over Z-ordered tables, against tables that are only compacted",
    run=run,
)
