"""`cli`: the start time of the command line.

- `help_vs_typer`: `deltaworks --help`, against an interpreter that only imports typer and rich, the libraries that
  comparable command lines use.
- `check_vs_typer`: `deltaworks pipelines check` on the pipelines of this checkout, against the same interpreter.

One repetition starts each process several times in sequence; `seconds_each` is the mean time of one start. The warm-up
compiles all modules and loads them into the page cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

STARTS = 5
_ROOT = Path(__file__).resolve().parents[1]
_DELTAWORKS = (sys.executable, "-m", "deltaworks.cli")


def run(options: Options) -> list[Result]:
    """Measures both comparisons."""
    typer = _side("typer", (sys.executable, "-c", "import typer, rich"))
    helped = _side("deltaworks_help", (*_DELTAWORKS, "--help"))
    checked = _side("deltaworks_check", (*_DELTAWORKS, "pipelines", "check"))
    comparisons = [
        Comparison(metric="help_vs_typer", ours=helped, other=typer, sizes={"starts": STARTS}),
        Comparison(metric="check_vs_typer", ours=checked, other=typer, sizes={"starts": STARTS}),
    ]
    return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)


def _side(name: str, command: tuple[str, ...]) -> Side:
    environment = os.environ | {"PYTHONPATH": str(_ROOT / "include"), "DELTAWORKS_PROJECT": str(_ROOT)}

    def start(clock: Clock) -> None:
        with clock:
            for _ in range(STARTS):
                subprocess.run(command, env=environment, cwd=_ROOT, stdout=subprocess.DEVNULL, check=True)
        clock.record(seconds_each=clock.seconds / STARTS)

    return Side(name, start)


BENCHMARK = Benchmark(
    name="cli",
    summary="starting the command line, against importing only typer and rich",
    run=run,
    tiny=TinySize(constants={"STARTS": 1}),
)
