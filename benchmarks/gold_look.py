"""`gold_look`: the gold tables that a stream of the games pipeline refreshes, after half a minute of events.

Runs on an S3 server. Half of 300,000 events have landed in small batches. Each repetition lands some more and refreshes
all changed partitions of the four gold tables that the stream builds. The baseline is the same refresh by
Spark, which finds duplicates by a window over all rows; each table reads its inputs separately.

- `look_seconds`: the duration of the refresh.
- `look_cpu_seconds`: CPU seconds of this process and its JVM, without the S3 server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, derive_result, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.games_files import GamesFiles
    from benchmarks.harness import Run
    from deltaworks.gold.incremental import IncrementalGold
    from deltaworks.sources.base import ObjectSlice
    from deltaworks.specs.storage import StorageSpec

_EVENTS = 300_000
#: Objects per batch, and batches that land before a refresh.
_OBJECTS, _BATCHES = 2, 4


def run(options: Options) -> list[Result]:
    """Measures both implementations."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files

    files = games_files(_EVENTS, progress=options.progress)
    with storages.object_store() as bucket:
        spark = sides.session(bucket.storage("session"))
        with bucket.new_root() as storage:
            landed = _LandedGames(spark, files, storage)
            landed.land_half()
            comparison = Comparison(
                metric="look_seconds",
                ours=Side("partial_sums", landed.refresh),
                other=Side("left_to_spark", _by_spark(landed.refresh_with_spark)),
                sizes={"events": files.events, "tables": landed.tables},
            )
            (seconds,) = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
        spark.stop()
    cpu = seconds.ours_parts["cpu_seconds"], seconds.other_parts["cpu_seconds"]
    return [seconds, derive_result(seconds, metric="look_cpu_seconds", sides=cpu)]


class _LandedGames:
    """A lake in which the objects of a game land in order."""

    def __init__(self, spark: SparkSession, files: GamesFiles, storage: StorageSpec) -> None:
        from benchmarks import sides
        from benchmarks.games_files import landed_objects
        from deltaworks.gold.incremental import IncrementalGold
        from deltaworks.specs.project import load_catalog
        from deltaworks.tables.lake import Lake

        self._spark, self._files = spark, files
        catalog = load_catalog(skip_invalid=True)
        environment = catalog.environment.model_copy(update={"lake": storage, "landing": storage})
        self._catalog = replace(catalog, environment=environment)
        self._gold = [table.name for table in catalog.pipeline("games").gold.stream_refreshed_tables]
        self._held = IncrementalGold(Lake(storage), catalog.pipeline("games"))
        self._processor, _ = sides.open_processor(spark, sides.games_spec(), files, storage)
        self._objects = landed_objects(files.landed)
        self._slices, self._batch = self._in_order(), 0

    @property
    def tables(self) -> int:
        """The number of gold tables that are refreshed."""
        return len(self._gold)

    def land_half(self) -> None:
        """Lands half of the objects and builds gold from them."""
        self._land(len(self._objects) // _OBJECTS // 2)
        self.refresh(Clock())

    def refresh(self, clock: Clock) -> None:
        """Lands some more batches, then measures a refresh by partial sums."""
        self._refresh(clock, self._held)

    def refresh_with_spark(self, clock: Clock) -> None:
        """The same without partial sums."""
        self._refresh(clock, None)

    def _refresh(self, clock: Clock, held: IncrementalGold | None) -> None:
        from deltaworks.gold.build import rebuild_gold

        self._land(_BATCHES)
        before = cpu_seconds()
        with clock:
            result = rebuild_gold(self._spark, self._catalog, "games", tables=self._gold, incremental=held)
        # A small batch may have no purchase; then the table of bookings has nothing to build, on both sides.
        if all(table.skipped for table in result.tables):
            raise RuntimeError(f"no table had changes to build: {result}")
        copies = sum(table.duplicates_dropped for table in result.tables)
        clock.record(cpu_seconds=cpu_seconds() - before, duplicates_dropped=copies)

    def _land(self, batches: int) -> None:
        for _ in range(batches):
            self._processor.process(next(self._slices), self._batch)
            self._batch += 1

    def _in_order(self) -> Iterator[ObjectSlice]:
        from benchmarks.sides import make_slice

        for start in range(0, len(self._objects), _OBJECTS):
            yield make_slice(self._files, self._objects[start : start + _OBJECTS], first_seq=start + 1)


def _by_spark(refresh: Run) -> Run:
    from deltaworks.gold import event_keys, input_views

    def run(clock: Clock) -> None:
        with patch.object(event_keys, "MAX_KEYS", 0), patch.object(input_views, "MAX_CACHED_ROWS", 0):
            refresh(clock)

    return run


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and its JVM, which is a child process."""
    import psutil

    here = psutil.Process(os.getpid())
    times = [process.cpu_times() for process in (here, *here.children()) if process.is_running()]
    return sum(spent.user + spent.system for spent in times)


BENCHMARK = Benchmark(
    name="gold_look",
    summary=("gold refreshed by a stream: partial sums of the new rows, against Spark over all rows of their dates"),
    run=run,
    tiny=TinySize(constants={"_EVENTS": 2_000, "_OBJECTS": 10, "_BATCHES": 1}),
)
