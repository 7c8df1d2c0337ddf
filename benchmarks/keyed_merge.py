"""`keyed_merge`: merging a batch into a keyed table of `--events` keys, by delta-rs and by Spark.

A keyed table has the newest row of each key. A batch has one row for each of a hundredth of the keys, spread evenly;
half of these rows are newer than the table's.

- `delta_rs_vs_spark`: the merge of `deltaworks.engine.keyed`, including its transaction ids, by each engine.
- `delta_rs_vs_spark_in_one_day`: the same into a table partitioned by 30 days, with a batch of one day.
- `batch_vs_rebuild`: the merge by delta-rs, against rebuilding the table from its history.

Every repetition merges into a copy of the table. All implementations in a comparison must produce the same rows.
"""

from __future__ import annotations

import datetime as dt
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltaworks.specs.pipeline import PipelineSpec

DAYS = 30
UPDATE_SHARE = 0.01
_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import sides
    from benchmarks.games_files import bench_folder

    folder = bench_folder() / f"keyed-merge-{uuid.uuid4().hex[:12]}"
    spark, keys = sides.session(), options.events
    updates = max(1, int(keys * UPDATE_SHARE))
    try:
        spread = _MarketTable(folder / "spread", keys, [], options)
        by_day = _MarketTable(folder / "by_day", keys, ["day"], options)
        batch, of_a_day = _rows(keys, updates, batch=1), _rows(keys, updates, batch=1, one_day=True)
        sizes = {"keys": keys, "updates": updates}
        left: dict[str, set[int]] = {}

        def side(name: str, market: _MarketTable, rows: pa.Table, engine: str, same: str) -> Side:
            return Side(name, _Repetition(spark, market, rows, engine, left.setdefault(same, set())))

        ours = side("delta_rs", spread, batch, "delta_rs", "spread")
        results = measure(
            BENCHMARK.name,
            [
                Comparison(
                    metric="delta_rs_vs_spark",
                    ours=ours,
                    other=side("spark", spread, batch, "spark", "spread"),
                    sizes=sizes,
                ),
                Comparison(
                    metric="delta_rs_vs_spark_in_one_day",
                    ours=side("delta_rs_in_one_day", by_day, of_a_day, "delta_rs", "by_day"),
                    other=side("spark_in_one_day", by_day, of_a_day, "spark", "by_day"),
                    sizes=sizes,
                ),
                Comparison(
                    metric="batch_vs_rebuild",
                    ours=ours,
                    other=side("rebuild", spread, batch, "rebuild", "spread"),
                    sizes=sizes,
                ),
            ],
            repeats=options.repeats,
            progress=options.progress,
        )
        if any(len(rows) != 1 for rows in left.values()):
            raise RuntimeError(f"the implementations produced different rows: {left}")
        return results
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class _MarketTable:
    """A history table with one row per key, and its keyed table."""

    def __init__(self, folder: Path, keys: int, partition_by: list[str], options: Options) -> None:
        self.folder, self.spec = folder, _declared(partition_by)
        land(self, folder, _rows(keys, keys, batch=0), batch=0)
        catch_up(self, folder, None)
        options.progress(f"{BENCHMARK.name}: loaded {keys:,} keys")


@dataclass(frozen=True, slots=True)
class _Repetition:
    spark: SparkSession
    market: _MarketTable
    rows: pa.Table
    engine: str
    digests: set[int]

    def __call__(self, clock: Clock) -> None:
        from deltaworks.engine.keyed import merge

        copy = self.market.folder.with_name(f"{self.market.folder.name}-{uuid.uuid4().hex[:8]}")
        shutil.copytree(self.market.folder, copy)
        try:
            if self.engine == "rebuild":
                shutil.rmtree(copy / "tables" / "market" / "latest_ticks")
            land(self.market, copy, self.rows, batch=1)
            with mock.patch.object(merge, "choose_engine", return_value=(self.engine, "measured")), clock:
                followed = catch_up(self.market, copy, self.spark)
            clock.record(rows=followed.rows, inner_seconds=followed.seconds)
            self.digests.add(_digest(copy))
        finally:
            shutil.rmtree(copy)


def land(market: _MarketTable, folder: Path, rows: pa.Table, *, batch: int) -> None:
    """Appends a batch to the history table."""
    from deltaworks.tables.commit import Step

    lake = _lake(folder)
    opened = lake.ensure("tables/market/ticks", rows.schema, user_metadata="{}", partition_by=["event_date"])
    lake.append(opened, "tables/market/ticks", rows, step=Step("market/g1/ticks", batch), user_metadata="{}")


def catch_up(market: _MarketTable, folder: Path, spark: SparkSession | None) -> Any:
    """Brings the keyed table up to date, as a new stream owner does after taking over."""
    from deltaworks.engine.keyed.catchup_threads import KeyedTables
    from deltaworks.engine.ledger import owner_step

    return KeyedTables(spark, _lake(folder), market.spec, owner=owner_step("market", 1)).catch_up("latest_ticks")


def _lake(folder: Path) -> Any:
    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables.lake import Lake

    return Lake(StorageSpec(root=f"file://{folder}"))


def _digest(folder: Path) -> int:
    """Returns a checksum of the keyed table, from its versions and number of rows."""
    import pyarrow.compute as pc

    rows = _lake(folder).rows("tables/market/latest_ticks", columns=["version", "price"])
    return int(pc.sum(rows.column("version")).as_py() * 10**6 + rows.num_rows)


def _rows(keys: int, count: int, *, batch: int, one_day: bool = False) -> pa.Table:
    """Creates one row for each of `count` keys. In later batches, every second row is newer than the table's."""
    import numpy as np
    import pyarrow as pa

    from deltaworks.tables.arrow_types import arrow_schema

    key = np.arange(count) * DAYS % keys if one_day else np.arange(count) * (keys // count)
    days = (np.arange(count) * 0 if one_day else key % DAYS).astype("int32") + (
        _START.date() - dt.date(1970, 1, 1)
    ).days
    version = np.ones(count, "int64") if batch == 0 else (np.arange(count) % 2) * 2
    draw = np.random.default_rng(batch)
    schema = arrow_schema(_declared([]).tables[0].column_types())
    columns: dict[str, Any] = {
        "event_id": pa.nulls(count, pa.string()),
        "event_name": pa.array(["tick"] * count),
        "event_time": pa.array([_START] * count, pa.timestamp("us", tz="UTC")),
        "event_date": pa.array([_START.date()] * count),
        "_ingested_at": pa.array([_START] * count, pa.timestamp("us", tz="UTC")),
        "_batch_id": pa.array(np.full(count, batch)),
        "_seq": pa.array(np.full(count, batch)),
        "_position": pa.array(np.arange(count)),
        "symbol": pa.array([f"s{number:09d}" for number in key]),
        "day": pa.array(days, pa.int32()).cast(pa.date32()),
        "version": pa.array(version),
        "price": pa.array(draw.random(count)),
        "note": pa.array([f"{number:x}" for number in draw.integers(0, 2**60, count)]),
    }
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _declared(partition_by: list[str]) -> PipelineSpec:
    from deltaworks.specs.pipeline import PipelineSpec

    types = {"symbol": "string", "day": "date", "version": "long", "price": "double", "note": "string"}
    return PipelineSpec.model_validate(
        {
            "pipeline": "market",
            "description": "ticks",
            "owner": "benchmarks",
            "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
            "event": {"name": {"constant": "tick"}, "time": {"path": "time"}},
            "tables": [
                {
                    "name": "ticks",
                    "catch_all": True,
                    "columns": [{"name": name, "path": name, "type": kind} for name, kind in types.items()],
                    "keyed": {"by": ["symbol", "day"], "newest_by": "version", "partition_by": partition_by},
                }
            ],
        }
    )


BENCHMARK = Benchmark(
    name="keyed_merge",
    summary="merging a batch into a keyed table by delta-rs, against Spark and against a rebuild",
    run=run,
    tiny=TinySize(),
)
