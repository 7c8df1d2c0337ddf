"""`gold_growth`: how the cost of a look of gold grows with the rows of its dates.

For each size a lake has that many events on one date, a twentieth of them purchases, and gold that is kept up with
them. Each repetition lands 5,000 events with the date's purchases among them, in six commits as a stream does in half a
minute, and refreshes the four gold tables of the games pipeline that the stream builds. After the last one, the
partial sums must equal what Spark computes from all rows.

- `ten_million_vs_hundred_thousand`, `million_vs_hundred_thousand`: CPU seconds of a look, of this process and its JVM.
- `look_cpu_seconds`: the same for the largest date, against a target of one second.
- `begin_cpu_seconds`: CPU seconds of the first look of a new process, which reads the date once, by a million rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gold_look import cpu_seconds
from benchmarks.harness import (
    Benchmark,
    Clock,
    Comparison,
    Options,
    Result,
    Side,
    TinySize,
    derive_result,
    measure,
    single_result,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SIZES = {"hundred_thousand": 100_000, "million": 1_000_000, "ten_million": 10_000_000}
_NEW_EVENTS, _COMMITS = 5_000, 6
_FILE_ROWS = 250_000
_PURCHASE_SHARE = 20
_TARGET_SECONDS = 1.0
DATE = dt.date(2026, 3, 2)


def run(options: Options) -> list[Result]:
    """Measures a look over each size."""
    from benchmarks import sides
    from benchmarks.scratch_folders import scratch_folder

    spark = sides.session()
    try:
        with ExitStack() as stack:
            games = {name: _Games(spark, stack.enter_context(scratch_folder(f"gold-growth-{name}"))) for name in _SIZES}
            for name, rows in _SIZES.items():
                options.progress(f"{BENCHMARK.name}: landing {rows:,} events")
                games[name].land_date(rows)
            sides_by_name = {name: Side(name, lake.look) for name, lake in games.items()}
            results = _measure(sides_by_name, options)
            for lake in games.values():
                lake.require_equal_to_spark()
            largest = list(games)[-1]
            begin = single_result(
                BENCHMARK.name,
                "begin_cpu_seconds",
                (games[largest].begin_seconds / (_SIZES[largest] / 1_000_000), _TARGET_SECONDS),
                other_name="target",
                sizes={"events": 1_000_000},
                digits=3,
            )
            return [*results, begin]
    finally:
        spark.stop()


def _measure(sides_by_name: dict[str, Side], options: Options) -> list[Result]:
    smallest, *larger = sides_by_name
    comparisons = [
        Comparison(
            metric=f"seconds_of_{name}_vs_{smallest}",
            ours=sides_by_name[name],
            other=sides_by_name[smallest],
            sizes={"events": _SIZES[name], "new_events": _NEW_EVENTS},
        )
        for name in larger
    ]
    results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    cpu = [
        derive_result(
            result,
            metric=f"{name}_vs_{smallest}",
            sides=(result.ours_parts["cpu_seconds"], result.other_parts["cpu_seconds"]),
        )
        for name, result in zip(larger, results, strict=True)
    ]
    target = replace(
        derive_result(results[-1], metric="look_cpu_seconds", sides=(cpu[-1].ours, _TARGET_SECONDS)),
        other_name="target",
    )
    return [*results, *cpu, target]


class _Games:
    """The games pipeline in a folder, with one large date."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from deltaworks.gold.incremental import IncrementalGold
        from deltaworks.specs.project import load_catalog
        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake

        storage = StorageSpec(root=f"file://{folder}")
        catalog = load_catalog(skip_invalid=True)
        environment = catalog.environment.model_copy(update={"lake": storage, "landing": storage})
        self._spark, self._catalog = spark, replace(catalog, environment=environment)
        self._spec, self._lake = catalog.pipeline("games"), Lake(storage)
        self._gold = [table.name for table in self._spec.gold.stream_refreshed_tables]
        self._held = IncrementalGold(self._lake, self._spec)
        self._commits = 0
        self.begin_seconds = 0.0

    def land_date(self, rows: int) -> None:
        """Builds gold of one event, then lands the date and begins it."""
        self._land(1)
        self._refresh()
        for start in range(0, rows, _FILE_ROWS):
            self._land(min(_FILE_ROWS, rows - start))
        before = cpu_seconds()
        self._refresh()
        self.begin_seconds = cpu_seconds() - before

    def look(self, clock: Clock) -> None:
        """Lands new events, then measures a refresh."""
        for _ in range(_COMMITS):
            self._land(_NEW_EVENTS // _COMMITS)
        before = cpu_seconds()
        with clock:
            engines = self._refresh()
        clock.record(cpu_seconds=cpu_seconds() - before)
        if engines != {"partial sums"}:
            raise RuntimeError(f"the look was computed by {engines}")

    def _refresh(self) -> set[str | None]:
        from deltaworks.gold.build import rebuild_gold

        result = rebuild_gold(self._spark, self._catalog, "games", tables=self._gold, incremental=self._held)
        return {table.engine for table in result.tables if not table.skipped}

    def require_equal_to_spark(self) -> None:
        """Raises if the tables differ from what Spark builds from all rows."""
        from deltaworks.gold.build import rebuild_gold
        from deltaworks.testing import table_rows

        merged = [sorted(map(str, table_rows(self._lake, "games", name))) for name in self._gold]
        rebuild_gold(self._spark, self._catalog, "games", tables=self._gold, full=True)
        if merged != [sorted(map(str, table_rows(self._lake, "games", name))) for name in self._gold]:
            raise RuntimeError("partial sums differ from a full build")

    def _land(self, count: int) -> None:
        self._commits += 1
        for table, rows in self._rows(count):
            self._append(table, rows)

    def _rows(self, count: int) -> Iterator[tuple[str, pa.Table]]:
        """Yields new events, one in fifty of which is a copy, and their purchases."""
        import duckdb

        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'").fetchall()
            connection.execute(f"SELECT setseed({1 / (self._commits + 1)})").fetchall()
            events = connection.sql(
                f"""
                SELECT DATE '{DATE}' AS event_date,
                  TIMESTAMPTZ '{DATE} 00:00:00' + to_seconds(floor(random() * 86400)::BIGINT) AS event_time,
                  CASE WHEN random() < 0.02 THEN 'copy-' || floor(random() * 1000)::INT
                    ELSE gen_random_uuid()::VARCHAR END AS event_id,
                  'event_' || (i % 31) AS event_name, 'device-' || floor(random() * 200000)::INT AS device_id,
                  {self._commits}::BIGINT AS _seq, i AS _position, {self._commits}::BIGINT AS _batch_id,
                  TIMESTAMPTZ '{DATE} 12:00:00' AS _ingested_at,
                  (random() * 20)::DECIMAL(12, 2) AS amount, ['DE', 'FR', NULL][1 + i % 3] AS country
                FROM range({count}) numbers(i)
                """
            ).to_arrow_table()
        yield "events", events
        yield "purchase", events.take(list(range(0, events.num_rows, _PURCHASE_SHARE)))

    def _append(self, table: str, rows: pa.Table) -> None:
        import pyarrow as pa

        from deltaworks.control import paths
        from deltaworks.tables.arrow_types import arrow_schema
        from deltaworks.tables.commit import Step

        schema, key = arrow_schema(self._spec.table(table).column_types()), paths.table("games", table)
        columns = {
            field.name: rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        }
        opened = self._lake.ensure(key, schema, user_metadata="{}", partition_by=["event_date"])
        step = Step(f"games/1/{table}", self._commits)
        self._lake.append(opened, key, pa.table(columns, schema=schema), step=step, user_metadata="{}")


BENCHMARK = Benchmark(
    name="gold_growth",
    summary="a look of gold over dates of a hundred thousand to ten million rows: its cost must not grow with them",
    run=run,
    tiny=TinySize(
        constants={"_SIZES": {"hundred_thousand": 500, "million": 2_000, "ten_million": 3_000}, "_NEW_EVENTS": 60}
    ),
)
