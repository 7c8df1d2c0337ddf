"""Runs all checks of a submission in parallel processes: `python -m tests.lanes`.

Spark's session and Airflow's settings need separate processes, and a waiting process leaves its core to others. Prints
a part's output once the part has ended, a line for each part, and a last line in pytest's format with the total counts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.examples import SHARE_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
#: Spark's two parts take the longest and wait for a third of that time; three other parts run meanwhile.
LANES = 5
#: Share of the Hypothesis examples to run; the selection is deterministic.
EXAMPLES_SHARE = "0.3"
_COUNTS = re.compile(r"(\d+) (failed|passed|skipped|deselected|xfailed|xpassed|errors?|subtests passed)\b")
_CLOSING = re.compile(r"^=* ?(\d+ (?:failed|passed|skipped|deselected|errors?|no tests ran).* in [\d.]+s.*)$")
_NO_TESTS = 5
#: Threads of Arrow and delta-rs. More do not read small data sooner, and cost 7 % more CPU (measured on two files).
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "TOKIO_WORKER_THREADS": "1"}
#: Niceness of a low-priority part: it gets a third of another part's processor time when both need it.
_STANDS_BACK = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One process: tests, or a check that passes or fails."""

    name: str
    command: tuple[str, ...]
    is_pytest: bool = True
    #: Runs at low priority.
    gives_way: bool = True
    #: Folder of a check's results by content of the files; a new clone begins with those of this machine's last run.
    results: Path | None = None


def _tests(name: str, *arguments: str, gives_way: bool = True) -> Part:
    return Part(name, (sys.executable, "-m", "pytest", *arguments), gives_way=gives_way)


def _check(name: str, *command: str, results: Path | None = None) -> Part:
    program = str(Path(sys.executable).with_name(command[0]))
    return Part(name, (program, *command[1:]), is_pytest=False, results=results)


#: Folders of tests/unit by part; the rest of tests/unit is one more part. Each part costs nine seconds of CPU for what
#: its process imports, so there are no more than are needed to end at about the same time.
_UNIT = {
    "unit/control": ("control", "privacy", "recovery"),
    "unit/pipelines": ("pipelines", "rules", "models", "feeds", "remediation", "collector", "generator"),
    "unit/console": ("console", "tables", "cli"),
    "unit/sources": ("sources", "events"),
    "unit/engine": ("engine", "gold", "maintenance", "mutations"),
}
_IN_UNIT_PARTS = (f"--ignore=tests/unit/{folder}" for folders in _UNIT.values() for folder in folders)
#: Folders of tests/spark by Spark session; the rest of tests/spark has one more. Each session costs its start, and its
#: first queries several times what later ones do.
_SESSIONS = {"spark/sources": ("gold", "recovery", "sandbox", "sources")}
_IGNORED = (f"--ignore=tests/spark/{folder}" for folders in _SESSIONS.values() for folder in folders)
#: Longest first, so that no part runs alone at the end. Spark's parts are sequential and have priority; the others fill
#: the remaining processor time.
PARTS = (
    *(
        _tests(name, *(f"tests/spark/{folder}" for folder in folders), gives_way=False)
        for name, folders in _SESSIONS.items()
    ),
    _tests("spark", "tests/spark", *_IGNORED, gives_way=False),
    _tests("unit", "tests/unit", *_IN_UNIT_PARTS),
    _tests("dags", "tests/dags"),
    *(_tests(name, *(f"tests/unit/{folder}" for folder in folders)) for name, folders in _UNIT.items()),
    _check("types", "mypy", results=ROOT / ".mypy_cache"),
    _check("style", "ruff", "check", "."),
    _check("format", "ruff", "format", "--check", "."),
    _check("layers", "lint-imports", "--no-cache"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a part. `cpu_seconds` includes the processes it has waited for."""

    part: Part
    code: int
    output: str
    seconds: float
    cpu_seconds: float

    @property
    def counts(self) -> Counter[str]:
        """Tests by outcome. A check counts as one test, and so does a part that ended without pytest's last line."""
        counts: Counter[str] = Counter()
        if closing := self.closing:
            counts.update({name: int(number) for number, name in _COUNTS.findall(closing)})
        if self.code not in (0, _NO_TESTS) and not counts["failed"] + counts["error"] + counts["errors"]:
            counts["failed"] += 1
        elif not self.part.is_pytest:
            counts["passed"] += 1
        return counts

    @property
    def closing(self) -> str | None:
        """Pytest's last line."""
        lines = (_CLOSING.match(line) for line in reversed(self.output.splitlines()) if self.part.is_pytest)
        return next((line[1].strip("= ") for line in lines if line), None)

    def line(self) -> str:
        said = self.closing or ("passed" if self.code == 0 else f"ended with {self.code}")
        return f"{self.part.name:14} {self.seconds:6.0f} s, {self.cpu_seconds:5.0f} s of CPU: {said}"


def _shared(results: Path) -> Path:
    """Returns where the results of the last run on this machine are, below XDG_CACHE_HOME or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "deltaworks", results.name.lstrip("."))


def fetch_results(results: Path) -> None:
    """Begins with the results of the last run on this machine, if this clone has none; without them a check is slow."""
    if results.exists() or not _shared(results).is_dir():
        return
    try:
        shutil.copytree(_shared(results), results)
    except (OSError, shutil.Error) as problem:
        print(f"{results.name} is filled again: {problem}", flush=True)
        shutil.rmtree(results, ignore_errors=True)


def share_results(results: Path) -> None:
    """Leaves the results to the next new clone; of concurrent runs, one does."""
    shared = _shared(results)
    try:
        shared.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=shared.parent, prefix=f"{shared.name}-") as folder:
            shutil.copytree(results, Path(folder, "new"))
            if shared.exists():
                shared.rename(Path(folder, "old"))
            Path(folder, "new").rename(shared)
    except (OSError, shutil.Error) as problem:
        print(f"{results.name} is not shared with other clones: {problem}", flush=True)


def run_part(part: Part) -> Outcome:
    """Runs one part to its end."""
    began = time.monotonic()
    if part.results is not None:
        fetch_results(part.results)
    command = ("nice", "-n", str(_STANDS_BACK), *part.command) if part.gives_way else part.command
    environment = {SHARE_VARIABLE: EXAMPLES_SHARE, **_FEW_THREADS, **os.environ}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output = process.stdout.read().decode(errors="replace")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if part.results is not None and process.returncode == 0 and part.results.is_dir():
        share_results(part.results)
    return Outcome(part, process.returncode, output, time.monotonic() - began, used.ru_utime + used.ru_stime)


def closing_line(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Returns one line for all parts in pytest's format; the number of failures is always present."""
    total: Counter[str] = Counter(failed=0, passed=0)
    for outcome in outcomes:
        total.update(outcome.counts)
    total["errors"] += total.pop("error", 0)
    shown = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "errors")
    counts = ", ".join(f"{total[name]} {name}" for name in shown if total[name] or name in ("failed", "passed"))
    return f" {counts} in {seconds:.2f}s ".center(100, "=")


def run(parts: Sequence[Part], *, lanes: int) -> int:
    """Runs the parts in order, this many at a time; returns 0 if all passed."""
    began, printing = time.monotonic(), threading.Lock()

    def run_and_print(part: Part) -> Outcome:
        outcome = run_part(part)
        with printing:
            print(f"\n==> {part.name}: {' '.join(part.command[1:])}\n{outcome.output.rstrip()}", flush=True)
        return outcome

    with ThreadPoolExecutor(max_workers=lanes) as pool:
        outcomes = list(pool.map(run_and_print, parts))
    print()
    for outcome in outcomes:
        print(outcome.line())
    print(closing_line(outcomes, time.monotonic() - began), flush=True)
    return int(any(outcome.code not in (0, _NO_TESTS) for outcome in outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=LANES, help="parts that run at a time")
    parser.add_argument("parts", nargs="*", help=f"only these: {', '.join(part.name for part in PARTS)}")
    options = parser.parse_args()
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    return run(parts, lanes=options.lanes)


if __name__ == "__main__":
    sys.exit(main())
