"""`single_table`: 30 tables written exactly once, against one plain table or folder written by Spark.

Ours: the landed files (concatenated, gzipped, wrapped) as one batch into the games pipeline's tables, one a type of
event beside the envelope of all and quarantine, each partitioned by date, with prepared batch, transaction ids, owner
epochs and ledger (`benchmarks.sides.FanOut`).

Other, each one table without partitions and without any of that:

- `ingest_vs_plain_delta`: the same pieces one a line, wrapper and all: read with a schema, the string under `body` read
  with `from_json`, appended to a Delta table. The same work of reading, a thirtieth of the tables.
- `ingest_vs_plain_delta_unwrapped`: events taken out of their wrapper beforehand: `spark.read.schema(...).json(files)`,
  then `.write.format("delta")`. It starts from half the work done.
- `ingest_vs_parquet`: the same, then `.write.parquet`: the least any Spark job can do.

Every repetition writes new tables. The schema is that of the pipeline's declared columns on every side.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Comparison, Figure, Options, Side, measure


def run(options: Options) -> list[Figure]:
    """Measure the comparisons."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files

    files = games_files(options.events, progress=options.progress)
    spec, spark, place = sides.games_spec(), sides.session(), storages.local_disk()
    ours = Side("fan_out", sides.FanOut(spark, spec, files, place))
    others = {
        "ingest_vs_plain_delta": Side(
            "plain_delta", sides.single_write(lambda: sides.read_wrapped(spark, spec, files), place)
        ),
        "ingest_vs_plain_delta_unwrapped": Side(
            "plain_delta_unwrapped", sides.single_write(lambda: sides.read_unwrapped(spark, spec, files), place)
        ),
        "ingest_vs_parquet": Side(
            "plain_parquet_unwrapped",
            sides.single_write(lambda: sides.read_unwrapped(spark, spec, files), place, form="parquet"),
        ),
    }
    sizes = files.sizes() | {"tables": len(spec.tables) + 1}
    figures = measure(
        BENCHMARK.name,
        [Comparison(metric=name, ours=ours, other=other, sizes=sizes) for name, other in others.items()],
        repeats=options.repeats,
        progress=options.progress,
    )
    spark.stop()
    return figures


BENCHMARK = Benchmark(
    name="single_table",
    summary="30 tables exactly once, against one plain Delta write and one Parquet write of the same events",
    run=run,
)
