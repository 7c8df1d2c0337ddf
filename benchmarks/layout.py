"""`layout`: point and range queries on a table Z-ordered by the nightly OPTIMIZE, against plain compaction.

The table has one day of game events, landed in time order in 640 small files. Deltaworks: the nightly Z-order by player
and time. Baseline: OPTIMIZE without Z-order, which combines files by size, with the same target size. Both have about
64 files, as a day of 16 GB has with default settings. `--events` is the number of rows.

- `point_query_vs_compaction`: all events of one player.
- `range_query_vs_compaction`: the events of 2 % of the players within six hours.
- `queries_of_<size>_mib_vs_compaction`: partitions from 1 to 64 MiB, see `layout_sizes`.

Each repetition runs ten Spark queries, the same on both tables. Results include the mean files and bytes read per
query, from the metrics of Spark's scan.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaworks.tables.lake import Lake

_FILES = 64
_LANDED_FILES = 640
_PLAYERS = 1_000_000
_QUERIES = 10
_HOUR = 3_600
_START = 1_767_225_600  # 2026-01-01, UTC
_TYPES = {
    "event_date": "date",
    "event_time": "timestamp",
    "player_id": "long",
    "level": "long",
    "amount": "double",
    "item": "string",
}
Query = Callable[[random.Random], str]


def run(options: Options) -> list[Result]:
    """Creates both tables once and queries them in turns."""
    from benchmarks import layout_sizes, sides

    spark = sides.session()
    try:
        by_size = layout_sizes.run(spark, options)
        with _tables(spark, options) as (ours, other):
            comparisons = [
                Comparison(
                    metric=f"{name}_query_vs_compaction",
                    ours=Side(f"{name}_zordered", _Queries(spark, ours, query)),
                    other=Side(f"{name}_compacted", _Queries(spark, other, query)),
                    sizes={"rows": options.events, "files": len(_parquet(ours)), "other_files": len(_parquet(other))},
                )
                for name, query in (("point", _point_query), ("range", _range_query))
            ]
            large = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
        return large + by_size
    finally:
        spark.stop()


def _point_query(chance: random.Random) -> str:
    return f"player_id = {chance.randrange(_PLAYERS)}"


def _range_query(chance: random.Random) -> str:
    player, hour = chance.randrange(_PLAYERS * 98 // 100), chance.randrange(18)
    start = _START + hour * _HOUR
    return (
        f"player_id BETWEEN {player} AND {player + _PLAYERS // 50} "
        f"AND event_time >= timestamp_seconds({start}) AND event_time < timestamp_seconds({start + 6 * _HOUR})"
    )


@contextmanager
def _tables(spark: SparkSession, options: Options) -> Iterator[tuple[Path, Path]]:
    from benchmarks.games_files import bench_folder
    from deltaworks.control import paths
    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables.lake import Lake

    root = bench_folder() / "layout"
    shutil.rmtree(root, ignore_errors=True)
    try:
        lake = Lake(StorageSpec(root=f"file://{root}/lake"))
        ours = root / "lake" / paths.table("bench", "events")
        options.progress(f"layout: {options.events:,} rows")
        _land(spark, ours, options.events)
        other = root / "compacted"
        shutil.copytree(ours, other)
        target = max(64 << 10, sum(path.stat().st_size for path in _parquet(ours)) // _FILES)
        options.progress(f"layout: files of {target / 1e6:.2f} MB")
        _zorder(spark, lake, target)
        _compact(spark, other, target)
        yield ours, other
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _land(spark: SparkSession, folder: Path, rows: int) -> None:
    """Writes rows in order of time with random players, as devices send them."""
    seconds = f"({_START} + id * {24 * _HOUR}D / {rows})"
    frame = spark.range(0, rows, 1, _LANDED_FILES).selectExpr(
        "DATE'2026-01-01' AS event_date",
        f"timestamp_millis(CAST({seconds} * 1000 AS BIGINT)) AS event_time",
        f"pmod(xxhash64(id), {_PLAYERS}) AS player_id",
        "pmod(xxhash64(id, 1), 80) AS level",
        "pmod(xxhash64(id, 2), 10000) / 100D AS amount",
        "concat('item-', hex(xxhash64(id, 3))) AS item",
    )
    frame.write.format("delta").partitionBy("event_date").save(f"file://{folder}")


def _zorder(spark: SparkSession, lake: Lake, target: int) -> None:
    from deltaworks.control import paths
    from deltaworks.control.clock import utc_now
    from deltaworks.control.home import PipelineHome
    from deltaworks.maintenance.layout import Layout
    from deltaworks.maintenance.optimize import OptimizeResult, TableOptimizer
    from deltaworks.maintenance.partition_choice import OptimizePolicy, choose_partitions
    from deltaworks.maintenance.table_health.measure import table_health
    from deltaworks.maintenance.zorder_ledger import ZOrderLedger, read_ledger

    layout = Layout(name="events", partition_by=("event_date",), zorder_by=("player_id", "event_time"), types=_TYPES)
    policy = OptimizePolicy(target_file_bytes=target, zorder_from_bytes=0)
    choice = choose_partitions(
        table_health(lake, paths.table("bench", "events")),
        layout,
        ledger=read_ledger(lake, "bench").table_state("events"),
        now=utc_now(),
        policy=policy,
    )
    ledger = ZOrderLedger(lake, PipelineHome.open(lake.storage, "bench"))
    done = TableOptimizer(lambda: spark, lake, ledger, "bench", layout, policy=policy).run(
        choice.partitions, OptimizeResult(table="events", round="daily")
    )
    if done.zordered != 1:
        raise RuntimeError(f"the day was not Z-ordered: {choice.reason}")


def _compact(spark: SparkSession, folder: Path, target: int) -> None:
    settings = {name: f"spark.databricks.delta.optimize.{name}" for name in ("maxFileSize", "minFileSize")}
    for name in settings.values():
        spark.conf.set(name, str(target))
    spark.sql(f"OPTIMIZE delta.`file://{folder}`").collect()
    for name in settings.values():
        spark.conf.unset(name)


def _parquet(folder: Path) -> list[Path]:
    """Returns the data files of a table's latest version."""
    from deltalake import DeltaTable

    return [Path(path.removeprefix("file://")) for path in DeltaTable(str(folder)).file_uris()]


@dataclass(frozen=True, slots=True)
class _Queries:
    """Runs the same queries on one of the tables."""

    spark: SparkSession
    folder: Path
    query: Query

    def __call__(self, clock: Clock) -> None:
        chance = random.Random(7)
        files = size = rows = 0
        # Adaptive execution hides the scan and its metrics in the plan.
        self.spark.conf.set("spark.sql.adaptive.enabled", "false")
        try:
            for _ in range(_QUERIES):
                frame = self._frame(self.query(chance))
                with clock:
                    rows += frame.collect()[0][0]
                read = _scan_metrics(frame)
                files, size = files + read["numFiles"], size + read["filesSize"]
        finally:
            self.spark.conf.unset("spark.sql.adaptive.enabled")
        clock.record(files_read=files / _QUERIES, megabytes_read=size / 1e6 / _QUERIES, rows=rows)

    def _frame(self, condition: str) -> DataFrame:
        table = self.spark.read.format("delta").load(f"file://{self.folder}").where(condition)
        return table.selectExpr("count(*)", "sum(amount)", "max(level)")


def _scan_metrics(frame: DataFrame) -> dict[str, int]:
    """Returns the scan metrics `numFiles` and `filesSize` of a completed query."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaf for at in range(leaves.size()) if "FileSourceScan" in (leaf := leaves.apply(at)).getClass().getName()]
    (scan,) = scans
    return {name: int(scan.metrics().apply(name).value()) for name in ("numFiles", "filesSize")}


BENCHMARK = Benchmark(
    name="layout",
    summary="point and range queries on a Z-ordered table, against plain compaction, by size of partition",
    run=run,
)
