"""`ingest_vs_plain_delta`: 30 tables written exactly once, against one plain table written by Spark.

Ours: the landed files (concatenated, gzipped, wrapped) as one batch into the games pipeline's tables, one a type of
event beside the envelope of all and quarantine, each partitioned by date, with prepared batch, transaction ids, owner
epochs and ledger (`benchmarks.sides.FanOut`).

Other, each one Delta table without partitions and without any of that:

- `plain_delta`: the same pieces one a line, wrapper and all: read with a schema, the string under `body` read with
  `from_json`, appended. The same work of reading, a thirtieth of the tables.
- `plain_delta_unwrapped`: events taken out of their wrapper beforehand: `spark.read.schema(...).json(files)`, then
  `.write.format("delta")`. It starts from half the work done: the least any Spark job can do.

Every repetition writes new tables. The schema is that of the pipeline's declared columns on every side.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure


def run(options: Options) -> list[Figure]:
    """Measure both comparisons."""
    from benchmarks import sides
    from benchmarks.games_files import games_files

    files = games_files(options.events, progress=options.progress)
    spec = sides.games_spec()
    spark = sides.session()

    def plain(clock: Clock) -> None:
        with sides.new_folder() as folder, clock:
            sides.write_table(sides.read_wrapped(spark, spec, files), folder, "events")

    def plain_unwrapped(clock: Clock) -> None:
        with sides.new_folder() as folder, clock:
            sides.write_table(sides.read_unwrapped(spark, spec, files), folder, "events")

    ours = Side("fan_out", sides.FanOut(spark, spec, files))
    sizes = files.sizes() | {"tables": len(spec.tables) + 1}
    figures = measure(
        BENCHMARK.name,
        [
            Comparison(metric="ingest_vs_plain_delta", ours=ours, other=Side("plain_delta", plain), sizes=sizes),
            Comparison(
                metric="ingest_vs_plain_delta_unwrapped",
                ours=ours,
                other=Side("plain_delta_unwrapped", plain_unwrapped),
                sizes=sizes,
            ),
        ],
        repeats=options.repeats,
        progress=options.progress,
    )
    spark.stop()
    return figures


BENCHMARK = Benchmark(
    name="single_table",
    summary="a batch into all tables of games, against one plain Delta table of the same events",
    run=run,
)
