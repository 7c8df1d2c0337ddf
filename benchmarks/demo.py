"""`demo`: the duration of each phase of `make demo`, with an empty lake and without a file of real events.

A phase is compared with the CPU time of all its processes divided by the number of cores: the shortest possible time on
this machine, reached if nothing waits. The total is compared with its target of four minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Options, Result, TinySize, single_result
from benchmarks.versions import cores

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

TARGET_SECONDS = 240.0
#: Settings that differ from those of the command.
_SETTINGS: Mapping[str, Any] = {}


def run(options: Options) -> list[Result]:
    """Runs the demo once. Raises if an answer is wrong."""
    from sandbox.demo.demo_options import delete_lake, demo_settings
    from sandbox.demo.run import Demo

    delete_lake(options.progress)
    settings = demo_settings(None, **_SETTINGS)
    report = Demo(settings, progress=options.progress).run()
    if not report.is_right:
        wrong = ", ".join(answer.question for answer in report.answers if not answer.is_right)
        raise RuntimeError(f"the demo failed: {wrong or report.health}")
    sizes = {"events": settings.games.target_events or 0, "answers": len(report.answers)}
    return list(phase_results(report, sizes))


def phase_results(report: DemoReport, sizes: dict[str, int | float]) -> Iterator[Result]:
    """Yields one result per phase, and one for the total, which contains the seconds of each DAG run."""
    for phase in report.phases:
        sides = (phase.seconds, phase.cpu_seconds / cores())
        yield single_result(BENCHMARK.name, phase.name, sides, other_name="cpu_over_cores", sizes=sizes)
    runs = {f"{dag_id}_seconds": round(seconds, 1) for dag_id, seconds in report.jobs}
    parts = runs | {"cpu_seconds": round(sum(phase.cpu_seconds for phase in report.phases), 1)}
    sides = (sum(phase.seconds for phase in report.phases), TARGET_SECONDS)
    yield single_result(BENCHMARK.name, "whole", sides, other_name="target", parts=parts, sizes=sizes)


BENCHMARK = Benchmark(
    name="demo",
    summary="the phases of `make demo` against their CPU time, and the total against the target of four minutes",
    run=run,
    tiny=TinySize(
        constants={"_SETTINGS": {"pipelines": ("games",), "game_events": 2_000, "days": 3, "landing_seconds": 2.0}}
    ),
)
