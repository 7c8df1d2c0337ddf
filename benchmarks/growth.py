"""`growth`: how the cost of a batch grows with its events and its tables.

Ours: the fan-out of `single_table`, into 1, 10 and 100 tables of equal columns over which the events are spread evenly
(`benchmarks.spread_files`), for a hundredth, a tenth and all of `--events`.

Other: one plain Delta write of the same wrapped events, whatever the number of tables.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Comparison, Figure, Options, Side, measure

if TYPE_CHECKING:
    from benchmarks.games_files import GamesFiles
    from deltaworks.engine.batch_report import BatchReport

_TABLES = (1, 10, 100)
_SHARES = (100, 10, 1)


def run(options: Options) -> list[Figure]:
    """Measure every pair of sizes."""
    from benchmarks import places, sides
    from benchmarks.games_files import games_files
    from benchmarks.spread_files import spread_files, spread_spec

    games, spark, place = sides.games_spec(), sides.session(), places.local_disk()
    comparisons = []
    for share in _SHARES:
        whole = games_files(options.events // share, progress=options.progress)
        for tables in _TABLES:
            files = spread_files(whole, games, tables, progress=options.progress)
            spec = spread_spec(games, tables)
            size = f"{options.events // share}_events_{tables}_tables"
            ours = sides.FanOut(spark, spec, files, place, check=_all_landed)
            other = sides.single_write(partial(sides.read_wrapped, spark, spec, files), place)
            comparisons.append(
                Comparison(
                    metric=f"fan_out_vs_single_write_{size}",
                    ours=Side(f"fan_out_{size}", ours),
                    other=Side(f"single_write_{size}", other),
                    sizes=files.sizes() | {"tables": tables + 1},
                )
            )
    figures = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    spark.stop()
    return figures


def _all_landed(report: BatchReport, files: GamesFiles) -> bool:
    return report.rows + report.quarantined == files.events


BENCHMARK = Benchmark(
    name="growth",
    summary="1, 10 and 100 tables, and a hundredth, a tenth and all of the events, against one plain Delta write",
    run=run,
)
