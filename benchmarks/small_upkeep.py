"""`small_upkeep`: the nightly OPTIMIZE of small tables without Spark, against Spark's Z-order of every partition.

The lake has 31 tables with ten closed days each; a day has 20 to 300 KB in five files, as before a first nightly run.
Deltaworks: a complete nightly run, which compacts these tables without Spark. Baseline: the same run of a pipeline that
declares an order for partitions of any size, in a running session, so that the start of a JVM is not counted. Both
start from a copy of the same lake each time. Results include the number of Z-ordered partitions, and files before and
after.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.night_tables import PIPELINE, land, project, table_name
from benchmarks.scratch_folders import copy_template, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES, _DAYS, _FILES = 31, 10, 5
_SMALLEST_BYTES, _LARGEST_BYTES = 20_000, 300_000
#: Approximate compressed size of a row.
_BYTES_PER_ROW = 14
_FIRST = dt.date(2026, 1, 1)
_NIGHT = dt.datetime(2026, 1, 15, 3, 30, tzinfo=dt.UTC)


def run(options: Options) -> list[Result]:
    """Creates a lake once and gives each repetition a copy."""
    from benchmarks import sides

    spark = sides.session()
    try:
        with _template(options) as template:
            comparison = Comparison(
                metric="small_night_without_spark_vs_zorder",
                ours=Side("without_spark", _NightlyRun(None, template)),
                other=Side("zorder_by_spark", _NightlyRun(spark, template)),
                sizes={"tables": _TABLES, "partitions": _TABLES * _DAYS, "files": _TABLES * _DAYS * _FILES},
            )
            return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


@contextmanager
def _template(options: Options) -> Iterator[Path]:
    from deltaworks.control import paths

    with scratch_folder("small_upkeep") as root:
        options.progress(f"small_upkeep: {_TABLES} tables of {_DAYS} days in {_FILES} files each")
        for number in range(_TABLES):
            _land(root / "lake" / paths.table(PIPELINE, table_name(number)), number)
        yield root


def _land(folder: Path, number: int) -> None:
    """Lands the days of one table. The first table is the smallest, the last one the largest."""
    import numpy as np

    size = _SMALLEST_BYTES + (_LARGEST_BYTES - _SMALLEST_BYTES) * number // (_TABLES - 1)
    dates = [_FIRST + dt.timedelta(days=day) for day in range(_DAYS)]
    land(folder, np.random.default_rng(number), dates, rows=size // _BYTES_PER_ROW // _FILES, files=_FILES)


@dataclass(frozen=True, slots=True)
class _NightlyRun:
    """A nightly run: without Spark, or with a session and a declaration that Z-orders every partition."""

    spark: SparkSession | None
    template: Path

    def __call__(self, clock: Clock) -> None:
        from deltaworks.maintenance.optimize_night import optimize_tables

        session = self.spark
        with copy_template(self.template) as root:
            catalog = project(root, tables=_TABLES, zorder_from=None if session is None else 0)
            with clock:
                done = optimize_tables(None if session is None else lambda: session, catalog, PIPELINE, now=_NIGHT)
        if sum(result.partitions for result in done) != _TABLES * _DAYS:
            raise RuntimeError(f"not all partitions were rewritten: {done}")
        clock.record(
            zordered=sum(result.zordered for result in done),
            files_before=sum(result.files_before for result in done),
            files_after=sum(result.files_after for result in done),
            megabytes=sum(result.bytes_before for result in done) / 1e6,
        )


BENCHMARK = Benchmark(
    name="small_upkeep",
    summary="the nightly OPTIMIZE of small tables without Spark, against Z-ordering every partition",
    run=run,
    tiny=TinySize(constants={"_TABLES": 3, "_DAYS": 2, "_FILES": 5}),
)
