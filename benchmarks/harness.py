"""Measures two implementations of the same work: in turns, with several repetitions, reporting medians.

The implementations alternate, and their order is reversed after each repetition, so that a machine that slows down or a
cache that fills up favours neither. The first repetition of each is a warm-up and is not counted, because a JVM
compiles code while it runs.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from benchmarks.versions import cores, versions

#: Uncounted repetitions before the counted ones. None in a tiny run, whose figures mean nothing.
_WARM_UPS = 1

#: Runs one repetition. It prepares its data, uses the clock around the measured work, and cleans up.
Run = Callable[["Clock"], None]
Progress = Callable[[str], None]


class Clock:
    """Measures the time of one repetition: `with clock: ...` around the measured work. Several blocks add up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self._started = 0.0

    def __enter__(self) -> Clock:
        gc.collect()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started

    def record(self, **parts: float) -> None:
        """Adds other measurements of this repetition by name, such as seconds of phases and counts."""
        self.parts.update(parts)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the implementations that are compared."""

    name: str
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Deltaworks' implementation and a baseline, with the name of the metric."""

    metric: str
    ours: Side
    other: Side
    sizes: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a comparison. `ratio` is ours divided by the other; below 1 ours is faster."""

    benchmark: str
    metric: str
    ours: float
    other: float
    unit: str
    ratio: float
    ours_name: str
    other_name: str
    ours_all: tuple[float, ...]
    other_all: tuple[float, ...]
    ours_parts: Mapping[str, float]
    other_parts: Mapping[str, float]
    sizes: Mapping[str, int | float]
    cores: int
    versions: Mapping[str, str]


def measure(
    benchmark: str,
    comparisons: Sequence[Comparison],
    *,
    repeats: int,
    warm: bool = False,
    progress: Progress = lambda line: None,
) -> list[Result]:
    """Runs every side of the comparisons `repeats` times after a warm-up. Returns one result per comparison.

    A side used in several comparisons runs once for all of them. The first error of any side ends the run.

    Args:
        warm: skip the warm-up, since the sides have run before in this process on less data.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be 1 or more")
    sides = _sides(comparisons)
    taken: dict[str, list[Clock]] = {name: [] for name in sides}
    first = 1 if warm else 1 - _WARM_UPS
    for repetition in range(first, repeats + 1):
        order = list(sides.values())
        for side in order if (repetition - first) % 2 == 0 else reversed(order):
            clock = Clock()
            side.run(clock)
            taken[side.name].append(clock)
            kind = f"repetition {repetition} of {repeats}" if repetition else "warm-up"
            progress(f"{benchmark}: {side.name}: {clock.seconds:.2f} s ({kind})")
    counted = {name: clocks[-repeats:] for name, clocks in taken.items()}
    return [_result(benchmark, comparison, counted) for comparison in comparisons]


def _sides(comparisons: Sequence[Comparison]) -> dict[str, Side]:
    sides: dict[str, Side] = {}
    for comparison in comparisons:
        for side in (comparison.ours, comparison.other):
            if sides.setdefault(side.name, side) != side:
                raise ValueError(f"two different sides have the name {side.name!r}")
    return sides


def _result(benchmark: str, comparison: Comparison, counted: Mapping[str, Sequence[Clock]]) -> Result:
    ours, other = counted[comparison.ours.name], counted[comparison.other.name]
    ours_median = statistics.median(clock.seconds for clock in ours)
    other_median = statistics.median(clock.seconds for clock in other)
    return Result(
        benchmark=benchmark,
        metric=comparison.metric,
        ours=round(ours_median, 4),
        other=round(other_median, 4),
        unit="seconds",
        ratio=round(ours_median / other_median, 3) if other_median else float("inf"),
        ours_name=comparison.ours.name,
        other_name=comparison.other.name,
        ours_all=tuple(round(clock.seconds, 4) for clock in ours),
        other_all=tuple(round(clock.seconds, 4) for clock in other),
        ours_parts=_medians(ours),
        other_parts=_medians(other),
        sizes=dict(comparison.sizes),
        cores=cores(),
        versions=versions(),
    )


def _medians(clocks: Sequence[Clock]) -> dict[str, float]:
    names = sorted({name for clock in clocks for name in clock.parts})
    return {name: round(statistics.median(clock.parts[name] for clock in clocks), 4) for name in names}


def single_result(
    benchmark: str,
    metric: str,
    sides: tuple[float, float],
    *,
    other_name: str,
    sizes: Mapping[str, int | float],
    unit: str = "seconds",
    digits: int = 1,
    parts: Mapping[str, float] | None = None,
) -> Result:
    """Returns the result of a benchmark that runs only once because it takes long. `sides` are the measured value and
    the value it is compared with.
    """
    ours, other = (round(side, digits) for side in sides)
    return Result(
        benchmark=benchmark,
        metric=metric,
        ours=ours,
        other=other,
        unit=unit,
        ratio=round(ours / other, 3) if other else float("inf"),
        ours_name="measured",
        other_name=other_name,
        ours_all=(ours,),
        other_all=(other,),
        ours_parts=parts or {},
        other_parts={},
        sizes=sizes,
        cores=cores(),
        versions=versions(),
    )


def derive_result(result: Result, *, metric: str, sides: tuple[float, float], unit: str = "seconds") -> Result:
    """Returns a result for another metric of the same comparison, computed from the recorded parts of both sides."""
    ours, other = (round(side, 4) for side in sides)
    return replace(
        result,
        metric=metric,
        unit=unit,
        ours=ours,
        other=other,
        ratio=round(sides[0] / sides[1], 3),
        ours_all=(ours,),
        other_all=(other,),
    )


def target_result(
    benchmark: str,
    metric: str,
    seconds: Sequence[float],
    *,
    target: float,
    sizes: Mapping[str, int | float],
    parts: Sequence[Mapping[str, float]],
) -> Result:
    """Returns the result of several runs compared with a target. `parts` has the recorded parts of each run."""
    middle = {name: round(statistics.median(taken[name] for taken in parts), 3) for name in parts[0]}
    sides = (statistics.median(seconds), target)
    result = single_result(benchmark, metric, sides, other_name="target", sizes=sizes, digits=2, parts=middle)
    return replace(result, ours_all=tuple(round(one, 2) for one in seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Command line options of a benchmark run."""

    repeats: int
    events: int
    progress: Progress
    minutes: float = 10.0
    requests: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySize:
    """The size of a run that shows that a benchmark works (`--tiny`); its figures mean nothing.

    Args:
        constants: constants of the benchmark's module that make it long, and their values in such a run. Only this
            process uses them: constants that a process started by the benchmark reads too must not be listed.
    """

    events: int = 1_000
    minutes: float = 0.1
    requests: int = 10_000
    constants: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark. `run` returns its results; it must import heavy modules inside the function.

    `unavailable` returns what is missing on this machine and how to get it, or None.
    """

    name: str
    summary: str
    run: Callable[[Options], list[Result]]
    tiny: TinySize
    unavailable: Callable[[], str | None] = lambda: None

    def run_tiny(self, progress: Progress) -> list[Result]:
        """Runs with the tiny size and one repetition."""
        size = self.tiny
        options = Options(
            repeats=1, events=size.events, minutes=size.minutes, requests=size.requests, progress=progress
        )
        with ExitStack() as stack:
            stack.enter_context(patch.object(sys.modules[__name__], "_WARM_UPS", 0))
            for name, value in size.constants.items():
                stack.enter_context(patch.object(sys.modules[self.run.__module__], name, value))
            return self.run(options)


def as_record(result: Result) -> dict[str, Any]:
    """Returns the result as JSON values."""
    return {name: getattr(result, name) for name in Result.__slots__}
