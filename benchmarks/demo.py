"""`demo`: how long `make demo` takes, phase by phase, on an empty lake and without a file of real events.

The other side of a phase is the CPU time of all its processes, divided by the cores: it takes no less than that on this
machine, and takes that where nothing waits and nothing else runs. The other side of the whole is what was promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Figure, Options, measure_once
from benchmarks.versions import cores

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

PROMISED_SECONDS = 240.0


def run(options: Options) -> list[Figure]:
    """Run it once; every answer must be right, or there are no figures."""
    from sandbox.demo.demo_options import delete_lake, demo_settings
    from sandbox.demo.run import Demo

    delete_lake(options.progress)
    settings = demo_settings(None)
    report = Demo(settings, progress=options.progress).run()
    if not report.is_right:
        wrong = ", ".join(answer.question for answer in report.answers if not answer.is_right)
        raise RuntimeError(f"the demo did not end well: {wrong or report.health}")
    sizes = {"events": settings.games.target_events or 0, "answers": len(report.answers)}
    return list(figures(report, sizes))


def figures(report: DemoReport, sizes: dict[str, int | float]) -> Iterator[Figure]:
    """One figure for each phase, and one for the whole with the seconds of the runs in it."""
    for phase in report.phases:
        sides = (phase.seconds, phase.cpu_seconds / cores())
        yield measure_once(BENCHMARK.name, phase.name, sides, other_name="cpu_over_cores", sizes=sizes)
    runs = {f"{dag_id}_seconds": round(seconds, 1) for dag_id, seconds in report.jobs}
    parts = runs | {"cpu_seconds": round(sum(phase.cpu_seconds for phase in report.phases), 1)}
    sides = (sum(phase.seconds for phase in report.phases), PROMISED_SECONDS)
    yield measure_once(BENCHMARK.name, "whole", sides, other_name="promised", parts=parts, sizes=sizes)


BENCHMARK = Benchmark(
    name="demo",
    summary="`make demo` phase by phase, against the CPU time it takes and the four minutes it may take",
    run=run,
)
