"""`single_table`: writing 30 tables exactly once, against writing one plain table or folder by Spark.

Deltaworks: the landed files (concatenated, gzipped, wrapped) as one batch into the games pipeline's tables: one per
event type, the table of all events, and quarantine. Each is partitioned by date and written with prepared batch,
transaction ids, owner epochs and ledger (`benchmarks.sides.FanOut`).

Each baseline writes one table without partitions and without these guarantees:

- `ingest_vs_plain_delta`: the same wrapped pieces, one per line, read with a schema, with `from_json` for the string
  under `body`, appended to a Delta table. It reads the same data and writes a thirtieth of the tables.
- `ingest_vs_plain_delta_unwrapped`: events unwrapped beforehand: `spark.read.schema(...).json(files)`, then
  `.write.format("delta")`. Half of the work is done before the measurement.
- `ingest_vs_parquet`: the same, then `.write.parquet`: the minimum work of any Spark job.

Every repetition writes new tables. All implementations use the pipeline's declared columns as schema.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Comparison, Options, Result, Side, TinySize, measure


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
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
    results = measure(
        BENCHMARK.name,
        [Comparison(metric=name, ours=ours, other=other, sizes=sizes) for name, other in others.items()],
        repeats=options.repeats,
        progress=options.progress,
    )
    spark.stop()
    return results


BENCHMARK = Benchmark(
    name="single_table",
    summary="writing 30 tables exactly once, against one plain Delta or Parquet write of the same events",
    run=run,
    tiny=TinySize(),
)
