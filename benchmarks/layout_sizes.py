"""The part of `layout` that measures from which size of a partition Z-order pays.

A day of game events of 1, 2, 4, … 64 MiB, landed in 16 files: Z-ordered by the nightly OPTIMIZE as the pipeline `games`
declares for its table `events`, against OPTIMIZE without an order. Spark, DuckDB (as `deltaworks sql` reads) and Polars
run the same ten queries with all columns: the events of a device, and the events of a device with one name. Each
result is one size: the seconds of all readers, by reader in the parts, the row groups and bytes that a reader of row
groups cannot skip, and the seconds of both OPTIMIZE commands.
"""

from __future__ import annotations

import datetime as dt
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Clock, Comparison, Options, Result, Side, measure
from benchmarks.scratch_folders import scratch_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

#: Sizes in MiB after compaction, with the default number of events; fewer events leave out the larger ones.
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_ALL_SIZES_EVENTS = 1_000_000
#: Events of the table `events` in a MiB, compressed in order of time.
_EVENTS_PER_MIB = 39_000
_GENERATED = 330_000
_LANDED_FILES = 16
_QUERIES = 5
_ORDER = ("event_name", "device_id")
_TEXTS = ("event_id", "event_name", "device_id", "session_id", "app_version", "platform", "country")
_NIGHT = dt.datetime(2026, 1, 5, 3, 30, tzinfo=dt.UTC)
_PIPELINE = "bench"


@dataclass(frozen=True, slots=True)
class _Query:
    """The device whose events are read, and their name; empty for all."""

    device: str
    name: str = ""

    def sql(self) -> str:
        """Returns the condition."""
        return f"device_id = '{self.device}'" + (f" AND event_name = '{self.name}'" if self.name else "")


def run(spark: SparkSession, options: Options) -> list[Result]:
    """Measures every size, and returns a result for each."""
    largest = max(1, max(_SIZES) * options.events // _ALL_SIZES_EVENTS)
    sizes = [size for size in _SIZES if size <= largest]
    generated = _generated_events(min(_GENERATED, largest * _EVENTS_PER_MIB), options.progress)
    results: list[Result] = []
    for size in sizes:
        with _tables(spark, generated, size) as (comparison, queries):
            options.progress(f"layout: a day of {size} MiB, {len(queries)} queries")
            results += measure("layout", [comparison], repeats=options.repeats, progress=options.progress)
    return results


@contextmanager
def _tables(spark: SparkSession, generated: pa.Table, size: int) -> Iterator[tuple[Comparison, list[_Query]]]:
    from deltaworks.control import paths
    from deltaworks.maintenance.optimize_night import optimize_tables

    rows = _day(generated, size * _EVENTS_PER_MIB)
    queries = _choose_queries(rows)
    with scratch_folder(f"layout_{size}_mib") as root:
        folders, seconds = {}, {}
        for name in ("zordered", "compacted"):
            catalog = _project(root / name, zorder_from="0" if name == "zordered" else "1024GiB")
            folders[name] = root / name / "lake" / paths.table(_PIPELINE, "events")
            _land(folders[name], rows)
            started = time.perf_counter()
            (done,) = optimize_tables(lambda: spark, catalog, _PIPELINE, tables=["events"], now=_NIGHT)
            seconds[name] = time.perf_counter() - started
            if (done.zordered, done.compacted) != ((1, 0) if name == "zordered" else (0, 1)):
                raise RuntimeError(f"the day was not rewritten as declared: {done}")
        sides = {
            name: Side(f"{name}_{size}_mib", _Reads(spark, folder, queries, seconds[name]))
            for name, folder in folders.items()
        }
        yield (
            Comparison(
                metric=f"queries_of_{size}_mib_vs_compaction",
                ours=sides["zordered"],
                other=sides["compacted"],
                sizes={"events": rows.num_rows, "mebibytes": size, "queries": len(queries)},
            ),
            queries,
        )


def _project(root: Path, *, zorder_from: str) -> Catalog:
    from benchmarks.project import declare_project

    columns = [
        {"name": name, "path": f"eventParams.{name}", "type": "string"}
        for name in _TEXTS
        if name not in ("event_id", "event_name")
    ]
    declared = {
        "pipeline": _PIPELINE,
        "description": "a day of game events",
        "event": {"name": {"path": "eventName"}, "time": {"path": "eventTime", "unit": "epoch_seconds"}},
        "tables": [{"name": "events", "catch_all": True, "columns": columns, "zorder_by": list(_ORDER)}],
        "maintenance": {"zorder_from_bytes": zorder_from},
    }
    return declare_project(root, declared, landing=root / "landing")


def _generated_events(count: int, progress: Callable[[str], None]) -> pa.Table:
    """Returns generated game events with the columns of the table `events`, in order of time."""
    import gzip

    import orjson
    import pyarrow as pa

    from benchmarks.games_files import games_files, landed_objects

    columns: dict[str, list[object]] = {name: [] for name in (*_TEXTS, "seconds")}
    for path in landed_objects(games_files(count, progress=progress).unwrapped):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            try:
                event = orjson.loads(line)
                values = {**event["eventParams"], "event_name": event["eventName"], "seconds": event["eventTime"]}
                row = [values[name] for name in columns]
            except (orjson.JSONDecodeError, TypeError, KeyError):
                continue  # the generator's faults
            if all(isinstance(value, str) for value in row[:-1]) and isinstance(row[-1], int):
                for name, value in zip(columns, row, strict=True):
                    columns[name].append(value)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    return table.sort_by("seconds")


def _day(generated: pa.Table, count: int) -> pa.Table:
    """Returns `count` events of one day in order of time. Copies of the generated events have other devices and ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chance, copies = random.Random(count), []
    for number in range(-(-count // generated.num_rows)):
        ids = [uuid.UUID(int=chance.getrandbits(128)).hex for _ in range(generated.num_rows)]
        devices = pc.binary_join_element_wise(generated["device_id"], f"{number:x}", "")
        copy = generated.set_column(generated.schema.get_field_index("event_id"), "event_id", pa.array(ids))
        copies.append(copy.set_column(copy.schema.get_field_index("device_id"), "device_id", devices))
    rows = pa.concat_tables(copies).sort_by("seconds").slice(0, count)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    times = [start + dt.timedelta(seconds=at * 86_000 / count) for at in range(count)]
    return (
        rows.drop_columns(["seconds"])
        .append_column("event_time", pa.array(times, pa.timestamp("us", "UTC")))
        .append_column("event_date", pa.array([start.date()] * count, pa.date32()))
    )


def _choose_queries(rows: pa.Table) -> list[_Query]:
    chance = random.Random(7)
    at = [chance.randrange(rows.num_rows) for _ in range(2 * _QUERIES)]
    chosen = rows.select(["device_id", "event_name"]).take(at).to_pylist()
    return [_Query(row["device_id"], row["event_name"] if number % 2 else "") for number, row in enumerate(chosen)]


def _land(folder: Path, rows: pa.Table) -> None:
    from deltalake import write_deltalake

    step = -(-rows.num_rows // _LANDED_FILES)
    for start in range(0, rows.num_rows, step):
        write_deltalake(str(folder), rows.slice(start, step), mode="append", partition_by=["event_date"])


@dataclass(frozen=True, slots=True)
class _Reads:
    """Runs the queries on one of the tables with each reader."""

    spark: SparkSession
    folder: Path
    queries: list[_Query]
    optimize_seconds: float

    def __call__(self, clock: Clock) -> None:
        parts: dict[str, float] = {}
        rows = {}
        for name, read in (("spark", self._spark), ("duckdb", self._duckdb), ("polars", self._polars)):
            before = clock.seconds
            with clock:
                rows[name] = sum(read(query) for query in self.queries)
            parts[f"{name}_seconds"] = clock.seconds - before
        if len(set(rows.values())) != 1:
            raise RuntimeError(f"the readers found different rows: {rows}")
        clock.record(**parts, **_unskipped(self.folder, self.queries), optimize_seconds=self.optimize_seconds)

    def _spark(self, query: _Query) -> int:
        return len(self.spark.read.format("delta").load(f"file://{self.folder}").where(query.sql()).collect())

    def _duckdb(self, query: _Query) -> int:
        import duckdb

        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake, duckdb_source

        lake = Lake(StorageSpec(root=f"file://{self.folder.parent}"))
        table = lake.open(self.folder.name)
        connection = duckdb.connect()
        connection.register("events", duckdb_source(lake, table)) if table is not None else None
        return len(connection.execute(f"SELECT * FROM events WHERE {query.sql()}").fetchall())

    def _polars(self, query: _Query) -> int:
        import polars as pl

        rows = pl.scan_delta(str(self.folder)).filter(pl.col("device_id") == query.device)
        return (rows.filter(pl.col("event_name") == query.name) if query.name else rows).collect().height


def _unskipped(folder: Path, queries: list[_Query]) -> dict[str, float]:
    """Returns row groups and MB per query that statistics do not exclude, and the row groups and MB of the table."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    groups = read = 0
    size = read_bytes = 0
    for uri in DeltaTable(str(folder)).file_uris():
        metadata = pq.ParquetFile(uri.removeprefix("file://")).metadata
        columns = {metadata.schema.names[number]: number for number in range(metadata.num_columns)}
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            group_bytes = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
            groups, size = groups + 1, size + group_bytes
            for query in queries:
                filters = {"device_id": query.device} | ({"event_name": query.name} if query.name else {})
                limits = {name: group.column(columns[name]).statistics for name in filters}
                if all(limits[name].min <= value <= limits[name].max for name, value in filters.items()):
                    read, read_bytes = read + 1, read_bytes + group_bytes
    return {
        "row_groups": groups,
        "megabytes": size / 1e6,
        "row_groups_read": read / len(queries),
        "megabytes_read": read_bytes / 1e6 / len(queries),
    }
