"""`small_jobs`: operator jobs over a few thousand rows, each against its target of 25 seconds.

- `reprocess`: reads all objects again, without Spark, as Airflow's task tries first.
- `replay`: replays half of the events from quarantine, after a table for them has been declared.
- `restore`: restores a table to the version before its rows.
- `gold_build`: builds a gold table for the first time, by spark-submit.
- `gold_build_small`: builds one date of a gold table again, by the command and, as the other side, by a Spark session.

Each job is a process, measured from start to end, on a copy of one lake on local disk; its result is verified.
`cpu_seconds` is the CPU time of its processes; compare this value on a busy machine.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, target_result
from benchmarks.scratch_folders import copy_template
from benchmarks.small_reprocess import PIPELINE, UNDECLARED_KIND, land_events, small_project
from benchmarks.spark_submit import link_library, submit
from deltaworks.operations.base import OPERATIONS_MODULE

if TYPE_CHECKING:
    from deltaworks.tables.lake import Lake

_ROOT = Path(__file__).resolve().parents[1]
_TARGET_SECONDS = 25.0
_EVENTS, _UNDECLARED_EVERY = 6_000, 2
_DATE = dt.date(2026, 1, 1)
_UNDECLARED_EVENTS = _EVENTS // _UNDECLARED_EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job: its script and arguments, the table it changes, and a check of that table's row count afterwards."""

    name: str
    entry: str
    arguments: tuple[str, ...]
    table: str
    is_done: Callable[[int], bool]
    by_spark: bool = False


_JOBS = (
    _Job(
        name="reprocess",
        entry="reprocess",
        arguments=('--options={"from_start":true,"dry_run":false,"spark":false}',),
        table="events",
        is_done=lambda rows: rows == _EVENTS - _UNDECLARED_EVENTS,
    ),
    _Job(
        name="replay",
        entry="replay_quarantine",
        arguments=('--options={"dry_run":false}',),
        table=UNDECLARED_KIND,
        is_done=lambda rows: rows == _UNDECLARED_EVENTS,
    ),
    _Job(
        name="restore",
        entry="restore",
        arguments=(
            f'--options={{"table":"events","to_version":0,"repair":"none","max_rows":{_EVENTS},"dry_run":false}}',
        ),
        table="events",
        is_done=lambda rows: rows == 0,
    ),
    _Job(
        name="gold_build",
        entry="rebuild_gold",
        arguments=(),
        table="daily",
        is_done=lambda rows: rows > 0,
        by_spark=True,
    ),
)


def run(options: Options) -> list[Result]:
    """Lands the events once and runs each job on copies."""
    results = []
    with land_events(options, events=_EVENTS, undeclared_every=_UNDECLARED_EVERY) as template:
        for job in _JOBS:
            seconds, parts = [], []
            for repetition in range(options.repeats + 1):
                with copy_template(template) as root:
                    took, cpu = _run(job, root)
                options.progress(
                    f"small_jobs: {job.name}: {took:.2f} s, {cpu:.2f} s of CPU{'' if repetition else ' (warm-up)'}"
                )
                if repetition:
                    seconds.append(took)
                    parts.append({"cpu_seconds": cpu})
            sizes = {"events": _EVENTS}
            results.append(
                target_result(BENCHMARK.name, job.name, seconds, target=_TARGET_SECONDS, sizes=sizes, parts=parts)
            )
        results += _measure_small_build(template, options)
    return results


def _measure_small_build(template: Path, options: Options) -> list[Result]:
    """Builds a date of a gold table that exists, by the command and by Spark in turn."""
    from deltaworks.gold.table_commit import DUCKDB, SPARK

    with copy_template(template) as root:
        _run(next(job for job in _JOBS if job.name == "gold_build"), root)
        command = ("deltaworks.cli", "gold", "build", PIPELINE, "--tables", "daily", "--dates", str(_DATE))
        comparison = Comparison(
            metric="gold_build_small",
            ours=Side("command", _DateBuild(root, command, DUCKDB)),
            other=Side("spark_session", _DateBuild(root, ("benchmarks.small_jobs", str(root)), SPARK)),
            sizes={"events": _EVENTS, "dates": 1},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@dataclass(frozen=True, slots=True)
class _DateBuild:
    """One build of a date in a process, of which the commit says that `engine` has computed it."""

    root: Path
    command: tuple[str, ...]
    engine: str

    def __call__(self, clock: Clock) -> None:
        from deltaworks.control import paths
        from deltaworks.gold.table_commit import ENGINE, SPARK
        from deltaworks.tables.lake import Lake
        from deltaworks.tables.log import commit_history

        lake, key = Lake(small_project(self.root).environment.lake), paths.table(PIPELINE, "daily")
        rows = _rows(lake, key)
        variables = {"PYTHONPATH": f"{_ROOT / 'include'}{os.pathsep}{_ROOT}", "DELTAWORKS_PROJECT": str(self.root)}
        before = _child_cpu_seconds()
        with clock:
            done = subprocess.run(
                [sys.executable, "-m", *self.command],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        if self.engine != SPARK:  # the JVM of a session is not waited for, so its time is unknown
            clock.record(cpu_seconds=round(_child_cpu_seconds() - before, 2))
        opened = lake.open(key)
        newest = () if opened is None else commit_history(lake, key, newest=opened.version(), limit=1)
        engines = [commit.metadata.get(ENGINE) for commit in newest]
        if done.returncode or engines != [self.engine] or _rows(lake, key) != rows:
            raise RuntimeError(f"the build by {self.engine} failed, or another engine built:\n{done.stdout[-2_000:]}")


def main(root: str) -> None:
    """Builds the date in a Spark session, as the command does for tables that are left to Spark."""
    from deltaworks.gold.build import rebuild_gold
    from deltaworks.tables.spark_session import build_session

    catalog = small_project(Path(root))
    session = build_session(catalog.environment, app_name="small_jobs")
    rebuild_gold(session, catalog, PIPELINE, tables=["daily"], dates=frozenset([_DATE]))
    session.stop()


def _run(job: _Job, root: Path) -> tuple[float, float]:
    """Runs a job on the lake at `root`. Returns its wall clock and CPU seconds."""
    from deltaworks.control import paths
    from deltaworks.tables.lake import Lake

    lake = Lake(small_project(root, declare_all=job.table == UNDECLARED_KIND).environment.lake)
    link_library(root)
    arguments = ("--pipeline", PIPELINE, *job.arguments)
    before, began = _child_cpu_seconds(), time.monotonic()
    with (root / "job.log").open("w") as log:
        if job.by_spark:
            code = submit(root, job.entry, *arguments, log=log).wait()
        else:
            command = [sys.executable, "-m", OPERATIONS_MODULE, job.entry, *arguments]
            variables = {"PYTHONPATH": str(_ROOT / "include"), "DELTAWORKS_PROJECT": str(root)}
            code = subprocess.run(
                command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
    seconds, cpu = time.monotonic() - began, _child_cpu_seconds() - before
    if code or not job.is_done(_rows(lake, paths.table(PIPELINE, job.table))):
        log_tail = (root / "job.log").read_text()[-2_000:]
        raise RuntimeError(f"{job.name} failed or left an unexpected number of rows:\n{log_tail}")
    return seconds, cpu


def _child_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rows(lake: Lake, key: str) -> int:
    rows = lake.rows(key)
    return -1 if rows is None else rows.num_rows


BENCHMARK = Benchmark(
    name="small_jobs",
    summary="reprocess, replay, restore and gold build of a few thousand rows, each against its target of 25 seconds",
    run=run,
    tiny=TinySize(constants={"_EVENTS": 600, "_UNDECLARED_EVENTS": 300}),
)

if __name__ == "__main__":
    main(*sys.argv[1:])
