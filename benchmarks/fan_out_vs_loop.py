"""`fan_out_vs_loop`: all tables in one pass, against a write a table.

Ours: as in `single_table`.

Other: what a job without fan-out does in its `foreachBatch`: events taken out of their wrapper beforehand are read
with a schema and cached, then each of the pipeline's tables is written in turn from a filter over the cache, with the
same columns and partitioned by date as ours are. It has no quarantine, no transaction ids and no ledger. Reading and
caching count; the cache is dropped after each repetition.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure


def run(options: Options) -> list[Figure]:
    """Measure the comparison."""
    from pyspark.sql import functions as F

    from benchmarks import sides
    from benchmarks.games_files import games_files

    files = games_files(options.events, progress=options.progress)
    spec = sides.games_spec()
    spark = sides.session()

    def loop(clock: Clock) -> None:
        with sides.new_folder() as folder, clock:
            events = sides.read_unwrapped(spark, spec, files).where("eventName is not null and eventTime is not null")
            events.persist()
            for table in spec.tables:
                names = table.when.get("eventName")
                rows = events if names is None else events.where(F.col("eventName").isin(list(names)))
                selected = rows.select(*sides.columns_of(table))
                sides.write_table(selected, folder, table.name, partition_by=table.partition_by)
            events.unpersist(blocking=True)

    comparison = Comparison(
        metric="fan_out_vs_loop",
        ours=Side("fan_out", sides.FanOut(spark, spec, files)),
        other=Side("loop_of_writes", loop),
        sizes=files.sizes() | {"tables": len(spec.tables) + 1},
    )
    figures = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    spark.stop()
    return figures


BENCHMARK = Benchmark(
    name="fan_out_vs_loop",
    summary="all tables of a batch in one pass, against one Delta write a table",
    run=run,
)
