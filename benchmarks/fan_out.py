"""`fan_out`: landing a batch in 30 tables exactly once, compared with common ways without a fan-out, on disk and on S3.

Deltaworks lands the batch as in the benchmark `single_table`. The baselines have no quarantine, transaction ids or
ledger:

- `tables_30_vs_single_write`: one Delta table with the same rows, from the same wrapped events.
- `tables_30_vs_loop`: most `foreachBatch` jobs. Events that were unwrapped beforehand are read with a schema and
  cached. Then each table is written in turn from a filter over the cache, with the same columns and partitioning by
  date.
- `tables_30_vs_threads`: the same with 8 tables written concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.games_files import GamesFiles
    from benchmarks.storages import BenchmarkStorage

_THREADS = 8


def run(options: Options) -> list[Result]:
    """Measures on local disk, then on s3proxy."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files

    files = games_files(options.events, progress=options.progress)
    results = []
    with storages.object_store() as bucket:
        spark = sides.session(bucket.storage("session"))
        for place in (storages.local_disk(), bucket):
            comparisons = list(_comparisons(spark, files, place))
            results += measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
        spark.stop()
    return results


def _comparisons(spark: SparkSession, files: GamesFiles, place: BenchmarkStorage) -> Iterator[Comparison]:
    from benchmarks import sides

    spec = sides.games_spec()
    ours = Side(f"fan_out_{place.name}", sides.FanOut(spark, spec, files, place))

    def unwrapped() -> DataFrame:
        return sides.read_unwrapped(spark, spec, files)

    others = {
        "single_write": sides.single_write(lambda: sides.read_wrapped(spark, spec, files), place),
        "loop": sides.write_tables(unwrapped, spec.tables, place),
        "threads": sides.write_tables(unwrapped, spec.tables, place, threads=_THREADS),
    }
    sizes = files.sizes() | {"tables": len(spec.tables) + 1}
    for name, run_other in others.items():
        other = Side(f"{name}_{place.name}", run_other)
        yield Comparison(metric=f"tables_30_vs_{name}_{place.name}", ours=ours, other=other, sizes=sizes)


BENCHMARK = Benchmark(
    name="fan_out",
    summary="30 tables exactly once, against a single write, a loop of writes and concurrent writes; on disk and S3",
    run=run,
    tiny=TinySize(),
)
