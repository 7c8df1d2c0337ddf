"""`ingest_beside_optimize`: the append rate of a table while OPTIMIZE rewrites its closed days.

Commits rows of the current day in sequence, while another process Z-orders the previous days of the same table without
a pause. The process is started as the nightly task starts it, with a niceness that yields the CPU to others.

- `ingest_beside_optimize_vs_alone`: against the same commits without a rewriting process.
- `ingest_beside_yielding_vs_equal`: against the same commits with a rewriting process of normal priority.

All processes share the machine's cores, so the ratio measures CPU contention as well as conflicts. A conflict or a
missing row is an error. Results include completed OPTIMIZE commands and rows per second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITS = 10
_CLOSED_DAYS = 2
_FILES_A_DAY = 20


def run(options: Options) -> list[Result]:
    """Measures appends with a low-priority OPTIMIZE, with one of normal priority, and alone."""
    from benchmarks import sides
    from deltaworks.specs.shares import MAINTENANCE_NICENESS

    spark = sides.session()
    sizes = {"rows": options.events // 2, "closed_rows": options.events // 2, "commits": _COMMITS}
    try:
        beside, equal, alone = (
            Side(name, _Appends(spark, options.events, niceness=niceness))
            for name, niceness in (("beside_optimize", MAINTENANCE_NICENESS), ("beside_equal", 0), ("alone", None))
        )
        comparisons = [
            Comparison(metric=f"ingest_beside_{metric}", ours=beside, other=other, sizes=sizes)
            for metric, other in (("optimize_vs_alone", alone), ("yielding_vs_equal", equal))
        ]
        return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True)
class _Appends:
    """Appends ten commits to the newest day of a table with two closed days. `niceness` is that of the rewriting
    process; None runs without one.
    """

    spark: SparkSession
    rows: int
    niceness: int | None

    def __call__(self, clock: Clock) -> None:
        half, commands = self.rows // 2, 0
        with _table() as uri:
            for day in range(_CLOSED_DAYS):
                self._append(uri, half // _CLOSED_DAYS, day, files=_FILES_A_DAY)
            with _start_optimize(uri, self.niceness) as rewriting:
                with clock:
                    for _ in range(_COMMITS):
                        self._append(uri, half // _COMMITS, _CLOSED_DAYS, files=1)
                if rewriting is not None:
                    commands = _completed_commands(rewriting)
            expected = half // _CLOSED_DAYS * _CLOSED_DAYS + half // _COMMITS * _COMMITS
            rows = self.spark.read.format("delta").load(uri).count()
        if rows != expected:
            raise RuntimeError(f"the table has {rows} rows instead of {expected}")
        clock.record(optimize_commands=commands, rows_per_second=half / clock.seconds)

    def _append(self, uri: str, rows: int, day: int, *, files: int) -> None:
        frame = self.spark.range(0, rows, 1, files).selectExpr(
            f"DATE'2026-01-0{day + 1}' AS event_date",
            "pmod(xxhash64(id), 1000000) AS player",
            "hex(xxhash64(id, 3)) AS item",
        )
        frame.write.format("delta").mode("append").partitionBy("event_date").save(uri)


@contextmanager
def _start_optimize(uri: str, niceness: int | None) -> Iterator[subprocess.Popen[str] | None]:
    """Yields the rewriting process after it has begun its first command; yields None without a niceness."""
    if niceness is None:
        yield None
        return
    from deltaworks.airflow.child_process import child_options

    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.background_rewrite", uri],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        **child_options(niceness=niceness) | {"stdin": subprocess.PIPE},
    )
    try:
        _await_line(process, "began")
        yield process
    finally:
        process.kill()
        process.wait()


def _await_line(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise RuntimeError(f"the rewriting process ended with code {process.wait()}")


def _completed_commands(process: subprocess.Popen[str]) -> int:
    """Ends the process and returns its number of completed commands. Raises if a command failed, for example by a
    conflict.
    """
    said, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the rewriting process ended with code {process.returncode}")
    return int(said.split()[-1])


@contextmanager
def _table() -> Iterator[str]:
    from benchmarks.games_files import bench_folder

    folder: Path = bench_folder() / f"beside-{uuid.uuid4().hex[:8]}"
    try:
        yield f"file://{folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


BENCHMARK = Benchmark(
    name="ingest_beside_optimize",
    summary="appends to a table while OPTIMIZE rewrites its closed days, against appends without OPTIMIZE",
    run=run,
    tiny=TinySize(constants={"_COMMITS": 3, "_FILES_A_DAY": 2}),
)
