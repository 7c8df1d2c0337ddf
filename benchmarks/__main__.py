"""`python -m benchmarks`: runs all benchmarks, or those named with --only.

Results go to standard output as JSON lines. Progress and a readable table go to standard error.
"""

from __future__ import annotations

import argparse
import signal
import sys

from rich.console import Console

from benchmarks.harness import Options
from benchmarks.printing import print_lines, print_table
from benchmarks.registry import BENCHMARKS


def main(arguments: list[str] | None = None) -> int:
    """Runs the selected benchmarks and returns the exit code."""
    options = _parse(arguments)
    if options.list:
        for benchmark in BENCHMARKS.values():
            sys.stdout.write(f"{benchmark.name:18} {benchmark.summary}\n")
        return 0
    console = Console(stderr=True, soft_wrap=True)
    settings = Options(
        repeats=options.repeats,
        events=options.events,
        minutes=options.minutes,
        requests=options.requests,
        progress=lambda line: console.print(f"==> {line}", highlight=False, markup=False),
    )
    results, missing = [], False
    for benchmark in (BENCHMARKS[name] for name in options.only or BENCHMARKS):
        if (reason := benchmark.unavailable()) is not None:
            settings.progress(f"{benchmark.name}: not measured: {reason}")
            missing = True
            continue
        measured = benchmark.run_tiny(settings.progress) if options.tiny else benchmark.run(settings)
        print_lines(measured, sys.stdout)
        results += measured
    print_table(results, console)
    return int(missing and bool(options.only))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="run only this benchmark; may be repeated"
    )
    parser.add_argument("--repeats", type=int, default=5, help="measured repetitions per implementation (default: 5)")
    parser.add_argument(
        "--events",
        type=int,
        default=1_000_000,
        help="number of generated events, or of rows or objects where a benchmark uses these (default: 1,000,000)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="minutes for which `freshness`, `groups` and `live_latest` land events (default: 10)",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=1_000_000,
        help="maximum number of requests for `mutation_resolve` (default: 1,000,000)",
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="run each benchmark once with its smallest size, to see that it works; the figures mean nothing",
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and exit")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # A terminated run must end the servers it has started; by default, a process ends without its `finally` blocks.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
