"""`file_sizes` reports the total time of an ingest and the time of its batches."""

from __future__ import annotations

from typing import Any

from benchmarks import file_sizes
from benchmarks.harness import Clock, Comparison, Side, measure


def side(name: str, seconds: float, **parts: float) -> Side:
    def run(clock: Clock) -> None:
        clock.seconds = seconds
        clock.record(**parts)

    return Side(name, run)


def test_the_batch_result_excludes_the_start() -> None:
    comparison = Comparison(
        metric="ingest_1MB_vs_file_source",
        ours=side("ours", 9.0, relay_seconds=1.0, batch_seconds=3.0),
        other=side("other", 4.0, batch_seconds=2.0),
    )
    (whole,) = measure("file_sizes", [comparison], repeats=1)

    batches = file_sizes._batch_result(whole)

    assert (whole.metric, whole.ours, whole.other, whole.ratio) == ("ingest_1MB_vs_file_source", 9.0, 4.0, 2.25)
    assert (batches.metric, batches.ours, batches.other, batches.ratio) == ("batches_1MB_vs_file_source", 4.0, 2.0, 2.0)


def test_batches_add_up_what_spark_says_they_took() -> None:
    batches = file_sizes._BatchTimes()
    told: list[dict[str, Any]] = [{"triggerExecution": 1_500, "addBatch": 900}, {"triggerExecution": 500}, {}]
    for durations in told:
        batches.add({"durationMs": durations})

    assert batches.seconds == 2.0
