"""`ingest_beside_optimize`: how fast rows are appended to a table while OPTIMIZE rewrites its closed days.

Ours: commits of the day that is written, one after the other, while a thread Z-orders the days before it in the same
table without a pause, in a session of its own. Other: the same commits with nobody beside them. Both share two cores,
so the ratio is what the machine's cores cost too, not conflicts alone: there must be none, and every row has to be
there. Noted: commits of OPTIMIZE while it was measured, and rows a second.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITS = 10
_CLOSED_DAYS = 2
_FILES_A_DAY = 20


def run(options: Options) -> list[Figure]:
    """Measure appends beside OPTIMIZE and alone."""
    from benchmarks import sides

    spark = sides.session()
    try:
        comparison = Comparison(
            metric="ingest_beside_optimize_vs_alone",
            ours=Side("beside_optimize", _Appends(spark, options.events, beside=True)),
            other=Side("alone", _Appends(spark, options.events, beside=False)),
            sizes={"rows": options.events // 2, "closed_rows": options.events // 2, "commits": _COMMITS},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


@dataclass(slots=True)
class _Rewriting:
    """What the thread did: commands that ended, and what one of them raised."""

    commands: int = 0
    error: Exception | None = None
    began: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Appends:
    """Ten commits into the newest day of a table that has two closed days."""

    spark: SparkSession
    rows: int
    beside: bool

    def __call__(self, clock: Clock) -> None:
        half = self.rows // 2
        with _table() as uri:
            for day in range(_CLOSED_DAYS):
                self._append(uri, half // _CLOSED_DAYS, day, files=_FILES_A_DAY)
            done = _Rewriting()
            with _optimizing(self.spark, uri, done) if self.beside else _alone(), clock:
                for _ in range(_COMMITS):
                    self._append(uri, half // _COMMITS, _CLOSED_DAYS, files=1)
            if done.error is not None:
                raise done.error
            expected = half // _CLOSED_DAYS * _CLOSED_DAYS + half // _COMMITS * _COMMITS
            found = self.spark.read.format("delta").load(uri).count()
        if found != expected:
            raise RuntimeError(f"{found} rows are there, not {expected}")
        clock.note(optimize_commits=done.commands, rows_per_second=half / clock.seconds)

    def _append(self, uri: str, rows: int, day: int, *, files: int) -> None:
        frame = self.spark.range(0, rows, 1, files).selectExpr(
            f"DATE'2026-01-0{day + 1}' AS event_date",
            "pmod(xxhash64(id), 1000000) AS player",
            "hex(xxhash64(id, 3)) AS item",
        )
        frame.write.format("delta").mode("append").partitionBy("event_date").save(uri)


@contextmanager
def _alone() -> Iterator[None]:
    yield


@contextmanager
def _optimizing(spark: SparkSession, uri: str, done: _Rewriting) -> Iterator[None]:
    """Z-order the closed days again and again, from when the first command runs until the block ends."""
    stop = threading.Event()
    session = spark.newSession()

    def rewrite() -> None:
        try:
            while not stop.is_set():
                done.began.set()
                session.sql(f"OPTIMIZE delta.`{uri}` WHERE event_date < DATE'2026-01-03' ZORDER BY (player)").collect()
                done.commands += 1
        except Exception as error:  # told by who measures
            done.error = error

    thread = threading.Thread(target=rewrite, name="optimize")
    thread.start()
    done.began.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


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
    summary="appends to a table while OPTIMIZE rewrites its closed days, against appends alone",
    run=run,
)
