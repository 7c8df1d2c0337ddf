"""`nexmark`: three queries over the bids of an auction, by Deltaworks and by plain Structured Streaming.

The queries correspond to q0, q13 and q18 of Nexmark (https://github.com/nexmark/nexmark); the rows are generated here.
Bids land in ten objects of JSON lines. Both implementations read one object per batch, until all are read:

- `pass_through` (q0): bids unchanged, into one Delta table.
- `side_input` (q13): bids joined with a small table about their channel. Deltaworks lands bids and builds a gold table
  from them and a reference table, so it writes two tables; plain Spark joins in the stream and writes one.
- `newest_bid` (q18): the last bid of each bidder on each auction. Deltaworks lands bids and maintains a live table of
  the latest row per key; plain Spark merges each batch into a Delta table, in `foreachBatch` with a transaction id.

The baselines write no quarantine, ledger or progress. Both implementations must produce the number of rows and the sum
of prices that are computed while the bids are generated.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from deltaworks.specs.catalog import Catalog
    from deltaworks.tables.lake import Lake

_BATCHES = 10
#: Longer than the data's time range, so that no bid expires.
_EXPIRY_MINUTES = 7 * 24 * 60
_KEY = ("auction", "bidder")
_START_MILLIS = 1_767_225_600_000
_CHANNELS = tuple(f"channel-{number}" for number in range(200))
_REGIONS = {channel: f"region-{number % 7}" for number, channel in enumerate(_CHANNELS)}
_TABLES = {"pass_through": "bids", "side_input": "joined", "newest_bid": "newest_bids"}
_COLUMNS = {
    "auction": "long",
    "bidder": "long",
    "price": "long",
    "channel": "string",
    "url": "string",
    "extra": "string",
}
_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items()) + ", dateTime bigint"
_JOINED = """
    SELECT b.event_date, b.auction, b.bidder, b.price, b.channel, b.event_time, s.region
    FROM bids b JOIN channels s ON b.channel = s.channel
"""
#: The number of rows a query returns, and the sum of their prices.
Answer = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bids:
    """Landed bids: a folder of JSON lines objects, and the expected result of each query."""

    folder: Path
    count: int
    answers: dict[str, Answer]


def run(options: Options) -> list[Result]:
    """Measures the three queries."""
    from benchmarks import sides
    from benchmarks.scratch_folders import scratch_folder

    spark = sides.session()
    try:
        with scratch_folder(BENCHMARK.name) as folder:
            bids = make_bids(folder / "landing", options.events)
            options.progress(f"{BENCHMARK.name}: landed {bids.count:,} bids")
            comparisons = [
                Comparison(
                    metric=f"{query}_vs_structured_streaming",
                    ours=Side(f"engine_{query}", _Deltaworks(spark, folder, bids, query)),
                    other=Side(f"plain_{query}", _StructuredStreaming(spark, folder, bids, query)),
                    sizes={"bids": bids.count, "batches": _BATCHES, "rows": bids.answers[query][0]},
                )
                for query in ("pass_through", "side_input", "newest_bid")
            ]
            return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


def make_bids(folder: Path, count: int) -> Bids:
    """Writes bids into objects. Half of them are for a twentieth of the auctions; all have different times."""
    drawn = random.Random(7)
    auctions, bidders = max(20, count // 50), max(10, count // 200)
    newest: dict[tuple[int, int], int] = {}
    total = 0
    folder.mkdir(parents=True)
    for batch in range(_BATCHES):
        lines = []
        for number in range(count * batch // _BATCHES, count * (batch + 1) // _BATCHES):
            auction = drawn.randrange(auctions // 20 if drawn.random() < 0.5 else auctions)
            bidder, price = drawn.randrange(bidders), drawn.randrange(100, 1_000_000)
            newest[auction, bidder] = price
            total += price
            bid = {"auction": auction, "bidder": bidder, "price": price, "channel": drawn.choice(_CHANNELS)}
            page = {"url": f"https://www.nexmark.com/{auction}/item.htm?query=1", "extra": f"{number:060x}"}
            lines.append(json.dumps(bid | page | {"dateTime": _START_MILLIS + number}))
        (folder / f"{batch:04}.json").write_text("\n".join(lines) + "\n")
    last = (len(newest), sum(newest.values()))
    return Bids(folder, count, {"pass_through": (count, total), "side_input": (count, total), "newest_bid": last})


@dataclass(frozen=True, slots=True)
class _Deltaworks:
    """Runs a temporary pipeline whose stream reads all landed objects, as a run with `available_now` does."""

    spark: SparkSession
    folder: Path
    bids: Bids
    query: str

    def __call__(self, clock: Clock) -> None:
        from deltaworks.control import paths
        from deltaworks.engine.runner import IngestRun
        from deltaworks.gold.build import rebuild_gold
        from deltaworks.operations.stream_parts import STREAM_PARTS
        from deltaworks.tables.lake import Lake

        root = self.folder / uuid.uuid4().hex
        try:
            catalog = _declare_project(root, self.bids.folder, self.query)
            lake = Lake(catalog.environment.lake)
            _write_file_events(lake, self.bids.folder)
            with clock:
                IngestRun(self.spark, catalog, "auctions", parts=STREAM_PARTS, available_now=True).run()
                if self.query == "side_input":
                    rebuild_gold(self.spark, catalog, "auctions")
            answer = lake.rows(paths.table("auctions", _TABLES[self.query]), columns=["price"])
            _require_equal(self.bids, self.query, answer)
        finally:
            shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _StructuredStreaming:
    """Runs the same query by plain Structured Streaming, following its guide, into one Delta table."""

    spark: SparkSession
    folder: Path
    bids: Bids
    query: str

    def __call__(self, clock: Clock) -> None:
        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake

        root = self.folder / uuid.uuid4().hex
        try:
            with clock:
                self._write(self._read(), root).awaitTermination()
            lake = Lake(StorageSpec(root=f"file://{root}"))
            _require_equal(self.bids, self.query, lake.rows("table", columns=["price"]))
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _read(self) -> DataFrame:
        bids = self.spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.bids.folder))
        timed = bids.selectExpr("*", "timestamp_millis(dateTime) AS event_time")
        timed = timed.selectExpr("*", "to_date(event_time) AS event_date").drop("dateTime")
        if self.query != "side_input":
            return timed
        channels = self.spark.createDataFrame(list(_REGIONS.items()), "channel string, region string")
        kept = ("event_date", "auction", "bidder", "price", "channel", "event_time", "region")
        return timed.join(channels, "channel").select(*kept)

    def _write(self, bids: DataFrame, root: Path) -> StreamingQuery:
        writer = bids.writeStream.option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True)
        table = f"{root}/table"
        if self.query == "newest_bid":
            return writer.foreachBatch(partial(_merge, table)).start()
        return writer.format("delta").partitionBy("event_date").start(table)


def _merge(table: str, batch: DataFrame, batch_id: int) -> None:
    """Merges the newest bids of a batch into the table, following Delta's guide to streaming upserts."""
    from delta.tables import DeltaTable

    spark = batch.sparkSession
    newest = batch.groupBy(*_KEY).agg(F.max_by(F.struct(*batch.columns), "event_time").alias("bid")).select("bid.*")
    if not DeltaTable.isDeltaTable(spark, table):
        newest.write.format("delta").option("txnAppId", "newest").option("txnVersion", batch_id).save(table)
        return
    same = " AND ".join(f"t.{name} = s.{name}" for name in _KEY)
    merge = DeltaTable.forPath(spark, table).alias("t").merge(newest.alias("s"), same)
    merge.whenMatchedUpdateAll("s.event_time > t.event_time").whenNotMatchedInsertAll().execute()


def _write_file_events(lake: Lake, landing: Path) -> None:
    """Writes the objects into the file event log, as a relay does."""
    from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
    from deltaworks.sources.objects.relay.messages import FileEvent

    now, received = datetime.now(UTC), []
    for path in sorted(landing.iterdir()):
        tag = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        event = FileEvent("landing", path.name, path.stat().st_size, tag, None, now, "ObjectCreated:Put", None)
        received.append(ReceivedEvent(event, path.name, now))
    FileEventLogWriter(lake, "landing", epoch=1).append(received)


def _declare_project(root: Path, landing: Path, query: str) -> Catalog:
    from benchmarks.project import declare_project

    pipeline: dict[str, Any] = {
        "pipeline": "auctions",
        "description": "bids of auctions",
        "event": {"name": {"constant": "bid"}, "time": {"path": "dateTime", "unit": "epoch_millis"}},
        "tables": [
            {
                "name": "bids",
                "catch_all": True,
                "columns": [{"name": name, "path": name, "type": kind} for name, kind in _COLUMNS.items()],
            }
        ],
    }
    if query == "newest_bid":
        newest: dict[str, Any] = {
            "name": "newest_bids",
            "reads": "bids",
            "kind": "latest",
            "expire_after_minutes": _EXPIRY_MINUTES,
        }
        pipeline["live"] = [newest | {"key": list(_KEY), "keep": [name for name in _COLUMNS if name not in _KEY]}]
    if query == "side_input":
        folder = root / "include" / "pipelines" / "auctions"
        folder.mkdir(parents=True)
        (folder / "channels.csv").write_text("channel,region\n" + "".join(f"{c},{r}\n" for c, r in _REGIONS.items()))
        (folder / "joined.sql").write_text(_JOINED)
        columns = [{"name": name, "type": "string"} for name in ("channel", "region")]
        pipeline["references"] = [{"name": "channels", "file": "channels.csv", "key": ["channel"], "columns": columns}]
        joined = {"name": "joined", "sql": "joined.sql", "reads": ["bids", "channels"], "partition_by": "event_date"}
        pipeline["gold"] = {"tables": [joined], "dedupe": None}
    return declare_project(root, pipeline, landing=landing, source={"max_files_per_batch": 1})


def _require_equal(bids: Bids, query: str, rows: pa.Table | None) -> None:
    """Compares the rows of a table with the expected result of the query.

    Raises:
        RuntimeError: they differ.
    """
    import pyarrow.compute as pc

    answer = (0, 0) if rows is None else (rows.num_rows, pc.sum(rows.column("price")).as_py())
    if answer != bids.answers[query]:
        raise RuntimeError(f"{query}: the rows and the sum of prices are {answer}, expected {bids.answers[query]}")


BENCHMARK = Benchmark(
    name="nexmark",
    summary="Nexmark's pass-through, side-input and latest-per-key queries, against plain Structured Streaming",
    run=run,
)
