"""`read_changes`: the cost of reading changed rows, and the cost of a change data feed for the writer.

An engagement table partitioned by organisation gets eight batches and a mutation batch that renames two contacts in a
hundred; notifications announce each. A reader that has read everything except the last batch and the mutation reads
these changes:

- `poll_vs_feed`: through notifications, against Delta's change data feed of the same table.
- `poll_vs_full_read`: through notifications, against reading the complete table, which a reader without notifications
  or a feed has to do.

For the writer:

- `merge_vs_merge_with_feed`: a mutation batch's MERGE into the table without a change data feed, against one with it.

Rows are written to Spark's `noop` sink, which reads every row and stores none.
"""

from __future__ import annotations

from benchmarks.harness import Benchmark, Comparison, Options, Result, Side, TinySize, measure

_BATCHES = 8


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import sides, storages
    from benchmarks.change_reads import ChangedTable
    from sandbox.experiments.engagement_rows import Workload

    spark, workload = sides.session(), Workload(rows=options.events, days=_BATCHES, batches_per_day=1)
    with storages.local_disk().new_root() as storage:
        table = ChangedTable(spark, storage, workload)
        counts = table.fill(lambda line: options.progress(f"{BENCHMARK.name}: {line}"))
        if len(set(counts.values())) != 1:
            raise RuntimeError(f"notifications and the change data feed return different numbers of rows: {counts}")
        notified = Side("notifications", lambda clock: table.poll("notifications", clock))
        feed = Side("change_feed", lambda clock: table.poll("change_feed", clock))
        merges = (
            Side("merge", lambda clock: table.merge(False, clock)),
            Side("merge_with_feed", lambda clock: table.merge(True, clock)),
        )
        sizes = {"events": workload.rows, "tables": 1, "orgs": workload.orgs, "requests": workload.requests}
        sizes["changed"] = counts["notifications"]

        def compare(*pairs: tuple[str, Side, Side]) -> list[Result]:
            return measure(
                BENCHMARK.name,
                [Comparison(metric=name, ours=ours, other=other, sizes=sizes) for name, ours, other in pairs],
                repeats=options.repeats,
                progress=options.progress,
            )

        results = compare(
            ("poll_vs_feed", notified, feed), ("poll_vs_full_read", notified, Side("full_read", table.full_read))
        )
        results += compare(("merge_vs_merge_with_feed", *merges))
    spark.stop()
    return results


BENCHMARK = Benchmark(
    name="read_changes",
    summary="reading rows that changed since a position: notifications, a change data feed and a full read",
    run=run,
    tiny=TinySize(constants={"_BATCHES": 2}),
)
