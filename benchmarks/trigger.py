"""`trigger`: the cost of a small batch when all tables and logs exist and are warm.

- `empty_batch`: a batch whose objects contain no events, against appending no rows to one Delta table by Spark.
- `hundred_events`: 100 events of the games pipeline into their tables, against appending them to one Delta table by
  Spark with a transaction id, as in `foreachBatch`.

One repetition lands ten batches in sequence and reports their mean, to average out variations of single commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.games_files import GamesFiles
    from benchmarks.harness import Run

_BATCHES = 10
_EVENTS = 100


def run(options: Options) -> list[Result]:
    """Measures both kinds of batch."""
    from benchmarks import sides
    from benchmarks.games_files import games_files

    files = games_files(_EVENTS, progress=options.progress)
    spark = sides.session()
    results = measure(
        BENCHMARK.name, list(_comparisons(spark, files)), repeats=options.repeats, progress=options.progress
    )
    spark.stop()
    return results


def _comparisons(spark: SparkSession, files: GamesFiles) -> Iterator[Comparison]:
    for metric, empty in (("empty_batch", True), ("hundred_events", False)):
        yield Comparison(
            metric=metric,
            ours=Side(f"fan_out_{metric}", _ours(spark, files, empty=empty)),
            other=Side(f"plain_delta_{metric}", _plain(spark, files, empty=empty)),
            sizes=files.sizes() | {"batches": _BATCHES},
        )


def _ours(spark: SparkSession, files: GamesFiles, *, empty: bool) -> Run:
    from benchmarks import sides, storages
    from deltaworks.sources.base import ObjectSlice

    spec = sides.games_spec()
    source = (
        ObjectSlice([], [], {"files": 0, "bytes": 0}, sides.open_files(files)) if empty else sides.make_slice(files)
    )

    def run(clock: Clock) -> None:
        with storages.local_disk().new_root() as storage:
            processor, _ = sides.open_processor(spark, spec, files, storage)
            with clock:
                for batch in range(_BATCHES):
                    processor.process(source, batch)
        clock.seconds /= _BATCHES

    return run


def _plain(spark: SparkSession, files: GamesFiles, *, empty: bool) -> Run:
    from benchmarks import sides, storages

    spec = sides.games_spec()

    def run(clock: Clock) -> None:
        with storages.local_disk().new_root() as storage:
            events = sides.read_unwrapped(spark, spec, files)
            sides.write_table(events.limit(0), storage, "events")
            with clock:
                for batch in range(_BATCHES):
                    rows = events.limit(0) if empty else sides.read_unwrapped(spark, spec, files)
                    writer = rows.write.format("delta").mode("append").option("txnAppId", "plain")
                    writer.option("txnVersion", batch).save(storage.spark_uri("events"))
        clock.seconds /= _BATCHES

    return run


BENCHMARK = Benchmark(
    name="trigger",
    summary="an empty batch and one of 100 events, against an append to one Delta table",
    run=run,
    tiny=TinySize(constants={"_BATCHES": 2}),
)
