"""`night`: the nightly OPTIMIZE, which selects partitions by table health, against Z-ordering every table.

The lake has fifteen tables of four days each. In three of them the last closed day landed in twenty small files.
Earlier nights have Z-ordered the other days; the pipeline declares an order for partitions of any size. Deltaworks: a
complete nightly run, which reads all logs, selects and rewrites partitions, and updates its ledger. Baseline:
`OPTIMIZE … ZORDER BY` on each table in a loop. Both start from a copy of the same lake each time. Results include bytes
and files rewritten.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure
from benchmarks.night_tables import PIPELINE, land, project, table_name
from benchmarks.scratch_folders import copy_template, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

_TABLES = 15
_TABLES_TO_COMPACT = 3
_DAYS = 4
_SMALL_FILES = 20
_NIGHT = dt.datetime(2026, 1, 6, 3, 30, tzinfo=dt.UTC)
_FIRST = dt.date(2026, 1, 1)


def run(options: Options) -> list[Result]:
    """Creates a lake once and gives each repetition a copy."""
    from benchmarks import sides

    spark = sides.session()
    try:
        with _template(spark, options) as template:
            comparison = Comparison(
                metric="night_vs_optimize_everything",
                ours=Side("night_by_health", _NightlyRun(spark, template)),
                other=Side("optimize_everything", _OptimizeEveryTable(spark, template)),
                sizes={"tables": _TABLES, "in_need": _TABLES_TO_COMPACT, "rows": options.events},
            )
            return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()


@contextmanager
def _template(spark: SparkSession, options: Options) -> Iterator[Path]:
    from deltaworks.control import paths
    from deltaworks.maintenance.optimize_night import optimize_tables

    with scratch_folder("night") as root:
        catalog = project(root, tables=_TABLES, zorder_from=0)
        rows = max(1_000, options.events // (_TABLES * _DAYS))
        options.progress(f"night: {_TABLES} tables, {rows:,} rows a day")
        for number in range(_TABLES):
            folder = root / "lake" / paths.table(PIPELINE, table_name(number))
            _land(folder, rows, days=range(_DAYS - 1), files=2)
        done = optimize_tables(
            lambda: spark,
            catalog,
            PIPELINE,
            now=_NIGHT,
            minutes=60,
            tables=[table_name(number) for number in range(_TABLES)],
        )
        if any(result.zordered != _DAYS - 1 for result in done):
            raise RuntimeError("the earlier nights did not Z-order all days")
        for number in range(_TABLES):
            folder = root / "lake" / paths.table(PIPELINE, table_name(number))
            files = _SMALL_FILES if number < _TABLES_TO_COMPACT else 1
            _land(folder, rows, days=[_DAYS - 1], files=files)
        yield root


def _land(folder: Path, rows: int, *, days: Sequence[int], files: int) -> None:
    """Lands `rows` rows for each day, in `files` small files per day."""
    import numpy as np

    dates = [_FIRST + dt.timedelta(days=day) for day in days]
    land(folder, np.random.default_rng(rows), dates, rows=rows // files, files=files)


@contextmanager
def _copy(template: Path) -> Iterator[Catalog]:
    with copy_template(template) as root:
        yield project(root, tables=_TABLES, zorder_from=0)


@dataclass(frozen=True, slots=True)
class _NightlyRun:
    """The nightly OPTIMIZE run, as Airflow starts it."""

    spark: SparkSession
    template: Path

    def __call__(self, clock: Clock) -> None:
        from deltaworks.maintenance.optimize_night import optimize_tables

        with _copy(self.template) as catalog, clock:
            done = optimize_tables(lambda: self.spark, catalog, PIPELINE, now=_NIGHT)
        touched = [result for result in done if not result.skipped]
        if [result.table for result in touched] != [table_name(number) for number in range(_TABLES_TO_COMPACT)]:
            raise RuntimeError(f"the run rewrote other tables than expected: {[result.table for result in touched]}")
        clock.record(
            tables=len(touched),
            files_rewritten=sum(result.files_before for result in touched),
            megabytes_rewritten=sum(result.bytes_before for result in touched) / 1e6,
        )


@dataclass(frozen=True, slots=True)
class _OptimizeEveryTable:
    """One OPTIMIZE command per table."""

    spark: SparkSession
    template: Path

    def __call__(self, clock: Clock) -> None:
        from deltaworks.control import paths

        files = size = 0
        with _copy(self.template) as catalog:
            for number in range(_TABLES):
                uri = catalog.environment.lake.spark_uri(paths.table(PIPELINE, table_name(number)))
                with clock:
                    metrics = self.spark.sql(f"OPTIMIZE delta.`{uri}` ZORDER BY (player)").collect()[0]["metrics"]
                files += metrics["numFilesRemoved"]
                size += metrics["filesRemoved"]["totalSize"] or 0
        clock.record(tables=_TABLES, files_rewritten=files, megabytes_rewritten=size / 1e6)


BENCHMARK = Benchmark(
    name="night",
    summary="the nightly OPTIMIZE of partitions selected by health, against Z-ordering every table",
    run=run,
)
