"""The benchmark harness alternates variants, excludes warm-ups, computes medians, and prints machine-readable
results."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.printing import print_lines, print_table
from benchmarks.registry import BENCHMARKS

ROWS = 1_000


class Ticking:
    """A clock whose sides take the seconds they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(harness.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(harness.gc, "collect", lambda: 0)

    def side(self, name: str, seconds: list[float]) -> Side:
        left: Iterator[float] = iter(seconds)

        def run(clock: Clock) -> None:
            self.calls.append(name)
            self.now += 1000  # preparation, which must not count
            with clock:
                self.now += next(left)
            clock.record(rows=float(len(self.calls)))

        return Side(name, run)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    return Ticking(monkeypatch)


def compared(ticking: Ticking) -> list[Result]:
    ours = ticking.side("ours", [100, 2, 4, 3])
    one = ticking.side("one", [100, 6, 5, 60])
    two = ticking.side("two", [100, 1, 1, 1])
    comparisons = [Comparison(metric="a", ours=ours, other=one), Comparison(metric="b", ours=ours, other=two)]
    return measure("bench", comparisons, repeats=3)


def test_sides_take_turns_and_the_order_turns_round(ticking: Ticking) -> None:
    compared(ticking)

    forth = ["ours", "one", "two"]
    assert ticking.calls == [*forth, *reversed(forth), *forth, *reversed(forth)]


def test_sides_that_are_warm_run_as_often_as_they_count(ticking: Ticking) -> None:
    ours, other = ticking.side("ours", [2, 4, 3]), ticking.side("other", [6, 5, 60])

    (result,) = measure("bench", [Comparison(metric="a", ours=ours, other=other)], repeats=3, warm=True)

    assert (result.ours_all, result.other_all) == ((2, 4, 3), (6, 5, 60))


def test_a_result_is_the_median_without_warm_up_and_preparation(ticking: Ticking) -> None:
    first, second = compared(ticking)

    assert (first.ours, first.other, first.ratio) == (3, 6, 0.5)
    assert (second.ours, second.other, second.ratio) == (3, 1, 3.0)
    assert first.ours_all == (2, 4, 3)
    assert first.cores >= 1
    assert "pyspark" in first.versions


def test_a_side_shared_by_comparisons_runs_once_for_both(ticking: Ticking) -> None:
    compared(ticking)

    assert ticking.calls.count("ours") == 4


def test_a_tiny_run_has_its_size_its_constants_and_no_warm_up(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = ticking.side("ours", [2]), ticking.side("other", [4])
    seen: list[object] = []

    def run(options: Options) -> list[Result]:
        seen.extend((options.events, options.minutes, sys.modules[__name__].ROWS))
        return measure("bench", [Comparison(metric="a", ours=ours, other=other)], repeats=options.repeats)

    tiny = TinySize(events=7, minutes=0.2, constants={"ROWS": 3})
    (result,) = Benchmark(name="bench", summary="", run=run, tiny=tiny).run_tiny(lambda line: None)

    assert seen == [7, 0.2, 3]
    assert ticking.calls == ["ours", "other"]
    assert result.ratio == 0.5
    assert ROWS == 1_000


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_constants_of_a_tiny_size_exist(name: str) -> None:
    benchmark = BENCHMARKS[name]

    assert set(benchmark.tiny.constants) <= set(vars(sys.modules[benchmark.run.__module__]))


def test_a_benchmark_that_cannot_run_here_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(BENCHMARKS["cli"], unavailable=lambda: "no terminal: buy one")
    monkeypatch.setitem(BENCHMARKS, "cli", missing)

    assert main(["--only", "cli"]) == 1

    assert "cli: not measured: no terminal: buy one" in capsys.readouterr().err


def test_two_sides_of_one_name_are_refused(ticking: Ticking) -> None:
    same = [ticking.side("x", [1, 1]), ticking.side("x", [1, 1])]

    with pytest.raises(ValueError, match="two different sides"):
        measure("bench", [Comparison(metric="a", ours=same[0], other=same[1])], repeats=1)


def test_at_least_one_repetition_is_needed(ticking: Ticking) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        measure("bench", [], repeats=0)


def test_results_are_printed_as_one_json_object_per_line(ticking: Ticking) -> None:
    results, stream = compared(ticking), io.StringIO()

    print_lines(results, stream)

    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["metric"] for record in records] == ["a", "b"]
    assert {"benchmark", "ours", "other", "unit", "ratio", "sizes", "cores", "versions"} <= set(records[0])


def test_the_table_for_people_shows_both_sides_and_the_ratio(ticking: Ticking) -> None:
    stream = io.StringIO()

    print_table(compared(ticking), Console(file=stream, width=200))

    assert "ours 3.00 s" in stream.getvalue()
    assert "0.50" in stream.getvalue()


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0

    listed = capsys.readouterr().out
    assert all(name in listed for name in BENCHMARKS)


def test_the_makefile_runs_the_harness() -> None:
    makefile = (Path(__file__).resolve().parents[3] / "Makefile").read_text()

    assert "-m benchmarks $(if $(ONLY),--only $(ONLY))" in makefile
