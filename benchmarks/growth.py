"""`growth`: how the cost of a batch grows with the number of events and tables.

Deltaworks: the fan-out of `single_table` into 1, 10 and 100 tables with equal columns, over which the events are spread
evenly (`benchmarks.spread_files`), for a ten-thousandth, a hundredth and all of `--events`. Above a million, the same
million events are repeated; this does not change the cost, since no table here drops duplicates.

Baseline: one plain Delta write of the same wrapped events, measured once per number of events.

The largest size has no warm-up, since the smaller sizes have warmed up the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Comparison, Options, Progress, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.games_files import GamesFiles
    from deltaworks.engine.progress import BatchReport

_TABLES = (1, 10, 100)
_EVENT_SHARES = (10_000, 100, 1)
_MAX_GENERATED_EVENTS = 1_000_000


def run(options: Options) -> list[Result]:
    """Measures every combination of sizes, the smallest first."""
    from benchmarks import sides

    spark = sides.session()
    results = []
    for share in _EVENT_SHARES:
        comparisons = list(_comparisons(spark, max(1, options.events // share), options.progress))
        results += measure(
            BENCHMARK.name, comparisons, repeats=options.repeats, warm=share == 1, progress=options.progress
        )
    spark.stop()
    return results


def _comparisons(spark: SparkSession, events: int, progress: Progress) -> Iterator[Comparison]:
    """Yields the comparisons for one number of events: one per number of tables."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files, repeat_files
    from benchmarks.spread_files import spread_files, spread_spec

    games, place = sides.games_spec(), storages.local_disk()
    made, times = min(events, _MAX_GENERATED_EVENTS), max(1, round(events / _MAX_GENERATED_EVENTS))
    whole, events = games_files(made, progress=progress), made * times
    other: Side | None = None
    for tables in _TABLES:
        files = repeat_files(spread_files(whole, games, tables, progress=progress), times)
        spec = spread_spec(games, tables)
        read = partial(sides.read_wrapped, spark, spec, files)
        other = other or Side(f"single_write_{events}_events", sides.single_write(read, place))
        size = f"{events}_events_{tables}_tables"
        yield Comparison(
            metric=f"fan_out_vs_single_write_{size}",
            ours=Side(f"fan_out_{size}", sides.FanOut(spark, spec, files, place, check=_require_all_landed)),
            other=other,
            sizes=files.sizes() | {"tables": tables + 1},
        )


def _require_all_landed(report: BatchReport, files: GamesFiles) -> bool:
    return report.rows + report.quarantined == files.events


BENCHMARK = Benchmark(
    name="growth",
    summary="1, 10 and 100 tables with a ten-thousandth to all of the events, against one plain Delta write",
    run=run,
    tiny=TinySize(constants={"_TABLES": (1, 3), "_EVENT_SHARES": (10, 1)}),
)
