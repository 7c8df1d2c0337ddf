"""`freshness`: the delay of events in bronze and gold at a steady rate, and memory growth.

Runs the complete embedded stack under Airflow on this machine. `--events` game events and the published edits land
evenly over `--minutes`, in objects, with notifications. Relays and streams use triggers of five seconds, and streams
build gold tables that the stream builds. Delays are read from the tables afterwards (`sandbox.demo.freshness`).

Events land only after the streams have started; the time until then is printed, and the benchmark `start` measures it.
`landing_to` covers all objects, including the first batches of a new process. `steady_to` covers objects that landed at
least two minutes after the first.

Targets: 15 seconds to bronze; to gold that a stream builds 30 seconds, or 45 seconds at the 99th percentile. Scheduled
gold is not measured, since it is only built after all events have landed. For memory, the baseline is the median over
all stream and relay processes in the first third of the landing (without its first two minutes), and in the middle
third.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Options, Result, TinySize, single_result

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

_BRONZE_SECONDS = 15.0
#: Targets by percentile, for gold tables that a stream builds.
_GOLD_SECONDS = {"p50": 30.0, "p95": 30.0, "p99": 45.0}
_MONITORED_PROCESSES = ("stream", "relay")


def run(options: Options) -> list[Result]:
    """Runs the stack for `--minutes`. Raises if an answer is wrong."""
    from deltaworks.specs.catalog import project_root
    from deltaworks.specs.project import load_catalog
    from generator.settings import GamesSettings
    from sandbox.demo.demo_options import delete_lake
    from sandbox.demo.run import Demo, DemoSettings, find_edits

    delete_lake(options.progress)
    settings = DemoSettings(
        games=GamesSettings(target_events=options.events, days=9, buffer_seconds=3_600),
        edits=find_edits(project_root(), None),
        landing_seconds=60 * options.minutes,
        wait_for_streams=True,
    )
    report = Demo(settings, progress=options.progress).run()
    if not all(answer.is_right for answer in report.answers):
        wrong = ", ".join(answer.question for answer in report.answers if not answer.is_right)
        raise RuntimeError(f"these answers were wrong: {wrong}")
    sizes = {"events": options.events, "minutes": options.minutes}
    beside = {
        name for name, spec in load_catalog(skip_invalid=True).pipelines.items() if spec.gold.stream_refreshed_tables
    }
    started = sum(phase.seconds for phase in report.phases if phase.name in ("stack", "streams"))
    options.progress(f"freshness: streams were ready for events {started:.0f} s after `deltaworks up`")
    return [*_freshness(report, sizes, beside), *_memory(report, sizes, started)]


def _freshness(report: DemoReport, sizes: dict[str, int | float], beside: Collection[str]) -> Iterator[Result]:
    for kind, measured in (("landing", report.freshness), ("steady", report.steady_freshness)):
        for freshness in measured:
            stages = ("bronze", "gold") if freshness.pipeline in beside else ("bronze",)
            for stage, percentile in itertools.product(stages, ("p50", "p95", "p99")):
                target = _BRONZE_SECONDS if stage == "bronze" else _GOLD_SECONDS[percentile]
                seconds = getattr(freshness, f"{stage}_{percentile}_seconds")
                metric = f"{freshness.pipeline}_{kind}_to_{stage}_{percentile}"
                yield _result(metric, (seconds, target), "seconds", "target", sizes | {"objects": freshness.objects})


def _memory(report: DemoReport, sizes: dict[str, int | float], started: float) -> Iterator[Result]:
    """Yields the growth of memory. The first sample was taken `started` seconds before the landing began."""
    from sandbox.demo.report import START_SECONDS

    began = report.memory_samples[0].at + timedelta(seconds=started)
    landing = [
        sum(size for kind, size in sample.by_kind.items() if kind in _MONITORED_PROCESSES)
        for sample in report.memory_samples
        if START_SECONDS <= (sample.at - began).total_seconds() <= 60 * sizes["minutes"]
    ]
    third = len(landing) // 3
    if not third:
        return
    first, middle, last = (
        statistics.median(part) for part in (landing[:third], landing[third:-third], landing[-third:])
    )
    yield _result("memory_last_third_vs_first", (last, first), "bytes", "first_third", sizes)
    # A bounded cache grows less and less; a leak grows steadily. So the last third is also compared with the middle
    # one.
    yield _result("memory_last_third_vs_middle", (last, middle), "bytes", "middle_third", sizes)


def _result(
    metric: str, sides: tuple[float, float], unit: str, other_name: str, sizes: dict[str, int | float]
) -> Result:
    return single_result(BENCHMARK.name, metric, sides, unit=unit, other_name=other_name, sizes=sizes, digits=2)


BENCHMARK = Benchmark(
    name="freshness",
    summary="the complete stack at a steady rate: delay from landing to bronze and to gold, and memory over time",
    run=run,
    tiny=TinySize(),
)
