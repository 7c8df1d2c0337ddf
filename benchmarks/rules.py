"""`rules`: the time to evaluate 100 rules with 200 label sets each for one minute, against the one minute available.

`share_of_minute` is the duration of one evaluation run of the process, without a JVM. The table has grown by one
minute; the SQL of each rule runs over a quarter of an hour (since `samples` is declared), 20,000 values are evaluated,
and 100 states are written. The result is the median over several minutes. The first minute is not counted, since it
opens all tables.
"""

from __future__ import annotations

import datetime as dt
import statistics
import time

from benchmarks.harness import Benchmark, Options, Result, TinySize, single_result

RULES, LABEL_SETS = 100, 200
_HISTORY = 30


def run(options: Options) -> list[Result]:
    """Measures the evaluation and returns one result."""
    from benchmarks.rule_lakes import START, rules_lake, write_minutes
    from benchmarks.scratch_folders import scratch_folder
    from deltaworks.control.objects import open_objects
    from deltaworks.rules.inputs import RuleTables
    from deltaworks.rules.process import PipelineEvaluator
    from deltaworks.tables.lake import Lake

    taken: list[float] = []
    cpu: list[float] = []
    with scratch_folder("rules") as folder:
        catalog = rules_lake(folder, rules=RULES, edges=LABEL_SETS, minutes=_HISTORY)
        storage = catalog.environment.lake
        tables = RuleTables(Lake(storage))
        judge = PipelineEvaluator(catalog, "delivery", open_objects(storage), tables)
        for minute in range(_HISTORY, _HISTORY + options.repeats + 1):
            write_minutes(catalog, first=minute, minutes=1, edges=LABEL_SETS)
            now = START + dt.timedelta(minutes=minute, seconds=91)
            tables.mark_stale()
            started, cpu_started = time.perf_counter(), time.process_time()
            judged = judge.evaluate(now)
            taken.append(time.perf_counter() - started)
            cpu.append(time.process_time() - cpu_started)
            if judged != RULES:
                raise RuntimeError(f"only {judged} of {RULES} rules were evaluated")
            options.progress(f"rules: minute {minute - _HISTORY}: {taken[-1]:.2f} s")
    sizes = {"rules": RULES, "label_sets": LABEL_SETS, "values": RULES * LABEL_SETS}
    sides = (statistics.median(taken[1:]), 60.0)
    parts = {"cpu_seconds": round(statistics.median(cpu[1:]), 3)}
    return [
        single_result(
            BENCHMARK.name, "share_of_minute", sides, other_name="a minute", sizes=sizes, digits=3, parts=parts
        )
    ]


BENCHMARK = Benchmark(
    name="rules",
    summary="evaluating 100 rules with 200 label sets each, against the one minute available",
    run=run,
    tiny=TinySize(constants={"RULES": 5, "LABEL_SETS": 10, "_HISTORY": 5}),
)
