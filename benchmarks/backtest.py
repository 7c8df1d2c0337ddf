"""`backtest`: the time to evaluate one rule over 30 past days.

The rule compares ten label sets with the same hour of the previous four weeks, so the medians of these weeks are
recomputed for each of the 30 dates. `speedup` is 30 days divided by the seconds the backtest takes.
"""

from __future__ import annotations

import datetime as dt
import time

from benchmarks.harness import Benchmark, Options, Result, TinySize, single_result

DAYS, LABEL_SETS = 30, 10


def run(options: Options) -> list[Result]:
    """Runs the backtest once and returns its speedup."""
    from benchmarks.rule_lakes import START, rules_lake
    from benchmarks.scratch_folders import scratch_folder
    from deltaworks.rules.backtest import backtest

    with scratch_folder("backtest") as folder:
        catalog = rules_lake(folder, rules=1, edges=LABEL_SETS, minutes=DAYS * 24 * 60, learned=True)
        (rule,) = catalog.pipeline("delivery").rules
        options.progress("backtest: test data written")
        started = time.perf_counter()
        until = START + dt.timedelta(days=DAYS)
        result = backtest(catalog, "delivery", rule, since=START, until=until, keep_points=False)
        seconds = time.perf_counter() - started
    if result.minutes != DAYS * 24 * 60:
        raise RuntimeError(f"the backtest evaluated {result.minutes} minutes")
    sizes = {"days": DAYS, "label_sets": LABEL_SETS, "episodes": len(result.episodes)}
    sides = (DAYS * 86_400.0, seconds)
    return [single_result(BENCHMARK.name, "speedup", sides, other_name="the backtest", sizes=sizes)]


BENCHMARK = Benchmark(
    name="backtest",
    summary="evaluating a rule over 30 past days, as a multiple of real time",
    run=run,
    tiny=TinySize(constants={"DAYS": 2}),
)
