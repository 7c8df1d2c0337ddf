"""`freshness`: how old an event is in bronze and in gold under a steady rate, and whether memory stays flat.

The whole embedded stack: `--events` games events and the published edits land evenly over `--minutes`, in objects, by
notification; relays and streams with their triggers of five seconds, gold built beside the stream where it declares
`refresh_seconds`, all under Airflow on this machine. What is measured is read from the tables afterwards
(`sandbox.demo.freshness`).

Events come once the streams look for them, and how long that takes is printed; what a start costs is measured by
`start`. `landing_to` is of all objects, those of a new process's first batches among them, `steady_to` of those that
landed two minutes after the first or later.

The other side is what was promised: of 95 % of objects 15 seconds to bronze; to gold that the stream builds 90 seconds,
120 of 99 %. Gold on a schedule is not built here before all has landed. For memory it is the median of all processes of
streams and relays in the first third of the landing, without its first two minutes, and in the middle one.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Figure, Options, measure_once

if TYPE_CHECKING:
    from sandbox.demo.report import DemoReport

_BRONZE_SECONDS = 15.0
#: By percentile, of gold that a stream builds.
_GOLD_SECONDS = {"p50": 90.0, "p95": 90.0, "p99": 120.0}
_MONITORED_PROCESSES = ("stream", "relay")


def run(options: Options) -> list[Figure]:
    """Run the stack for that long; every answer must be right, or there are no figures."""
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
    options.progress(f"freshness: streams looked for events {started:.0f} s after `deltaworks up`")
    return [*_freshness(report, sizes, beside), *_memory(report, sizes, started)]


def _freshness(report: DemoReport, sizes: dict[str, int | float], beside: Collection[str]) -> Iterator[Figure]:
    for kind, measured in (("landing", report.freshness), ("steady", report.steady_freshness)):
        for freshness in measured:
            stages = ("bronze", "gold") if freshness.pipeline in beside else ("bronze",)
            for stage, percentile in itertools.product(stages, ("p50", "p95", "p99")):
                promised = _BRONZE_SECONDS if stage == "bronze" else _GOLD_SECONDS[percentile]
                seconds = getattr(freshness, f"{stage}_{percentile}_seconds")
                metric = f"{freshness.pipeline}_{kind}_to_{stage}_{percentile}"
                yield _figure(
                    metric, (seconds, promised), "seconds", "promised", sizes | {"objects": freshness.objects}
                )


def _memory(report: DemoReport, sizes: dict[str, int | float], started: float) -> Iterator[Figure]:
    """Of samples, the first of which is from `started` seconds before the landing began."""
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
    yield _figure("memory_last_third_vs_first", (last, first), "bytes", "first_third", sizes)
    # What fills up to a bound grows less and less, what leaks goes on.
    yield _figure("memory_last_third_vs_middle", (last, middle), "bytes", "middle_third", sizes)


def _figure(
    metric: str, sides: tuple[float, float], unit: str, other_name: str, sizes: dict[str, int | float]
) -> Figure:
    return measure_once(BENCHMARK.name, metric, sides, unit=unit, other_name=other_name, sizes=sizes, digits=2)


BENCHMARK = Benchmark(
    name="freshness",
    summary="the whole stack under a steady rate: landing to bronze and to gold, and memory over time",
    run=run,
)
