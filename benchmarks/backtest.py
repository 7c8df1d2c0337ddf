"""`backtest`: a rule judged over 30 days, against the time in which they passed.

The rule compares ten label sets with the same hour of four weeks, so that for each of the 30 dates the medians of the
weeks before are made anew. `speedup` is the days that passed divided by the seconds it took.
"""

from __future__ import annotations

import datetime as dt
import time

from benchmarks.harness import Benchmark, Figure, Options, measure_once

DAYS, LABEL_SETS = 30, 10


def run(options: Options) -> list[Figure]:
    """One figure."""
    from benchmarks.rule_lakes import START, rules_lake
    from benchmarks.scratch_folders import scratch_folder
    from deltaworks.rules.backtest import backtest

    with scratch_folder("backtest") as folder:
        catalog = rules_lake(folder, rules=1, edges=LABEL_SETS, minutes=DAYS * 24 * 60, learned=True)
        (rule,) = catalog.pipeline("delivery").rules
        options.progress("backtest: the days are written")
        started = time.perf_counter()
        until = START + dt.timedelta(days=DAYS)
        result = backtest(catalog, "delivery", rule, since=START, until=until, keep_points=False)
        seconds = time.perf_counter() - started
    if result.minutes != DAYS * 24 * 60:
        raise RuntimeError(f"{result.minutes} minutes were judged")
    sizes = {"days": DAYS, "label_sets": LABEL_SETS, "episodes": len(result.episodes)}
    sides = (DAYS * 86_400.0, seconds)
    return [measure_once(BENCHMARK.name, "speedup", sides, other_name="the backtest", sizes=sizes)]


BENCHMARK = Benchmark(name="backtest", summary="a rule over 30 days, against the time in which they passed", run=run)
