"""The inputs of gold tables: bronze tables held at one version, without the copies producers sent twice.

A row is a copy when another row of the same key, at most `across_days` dates away, arrived before it (the lesser
`_seq`, then `_position`). That is decided by the neighbouring dates alone, so a rebuild of some dates agrees with a
rebuild of all. Copies are looked up once per input over narrow columns; the SQL then reads the table without them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.gold.plan import DATE_COLUMN, Dates, GoldPlan, widened
from deltaworks.specs.gold import DedupeSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake

_ARRIVAL = ("_seq", "_position")


@dataclass(frozen=True, slots=True)
class PinnedInput:
    """A bronze table at the version a build reads. `version` and `table_id` are None while it does not exist."""

    name: str
    key: str
    version: int | None
    table_id: str | None
    columns: Mapping[str, str]


def pin_inputs(lake: Lake, spec: PipelineSpec, names: Sequence[str]) -> dict[str, PinnedInput]:
    """The named bronze tables as they are now."""
    pinned = {}
    for name in names:
        key = paths.table(spec.pipeline, name)
        table = lake.open(key)
        pinned[name] = PinnedInput(
            name=name,
            key=key,
            version=table.version() if table else None,
            table_id=str(table.metadata().id) if table else None,
            columns=spec.table(name).column_types(),
        )
    return pinned


@dataclass(frozen=True, slots=True)
class _Copies:
    """The rows to leave out of an input within some dates, and how many there are on each."""

    rows: DataFrame
    per_date: Mapping[dt.date, int]


class InputViews:
    """Temporary views of the inputs, named as gold SQL names them. One build at a time per session."""

    def __init__(
        self, spark: SparkSession, lake: Lake, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._inputs = inputs
        self._dedupe = dedupe
        self._copies: dict[tuple[str, Dates], _Copies] = {}
        self._registered: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._registered:
            self._spark.catalog.dropTempView(name)
        for copies in self._copies.values():
            copies.rows.unpersist()

    def prepare(self, plans: Sequence[GoldPlan]) -> None:
        """Look up the copies once for all plans that read an input, instead of once for each."""
        for name in self._inputs:
            wanted = [plan.input_dates for plan in plans if name in plan.table.reads]
            if wanted:
                self._copies_of(name, _union(wanted))

    def register(self, reads: Sequence[str], dates: Dates) -> None:
        """Make the views for one gold table, holding the rows of `dates`."""
        for name in reads:
            rows = self._rows(name, dates)
            copies = self._copies_of(name, dates)
            if copies is not None and copies.per_date:
                rows = rows.join(copies.rows, on=list(_ARRIVAL), how="left_anti")
            rows.createOrReplaceTempView(name)
            self._registered.add(name)

    def copies_dropped(self, reads: Sequence[str], dates: Dates) -> int:
        """How many rows the views over `dates` leave out as copies."""
        total = 0
        for name in reads:
            copies = self._copies_of(name, dates)
            found = copies.per_date if copies else {}
            total += sum(count for date, count in found.items() if dates is None or date in dates)
        return total

    def _rows(self, name: str, dates: Dates) -> DataFrame:
        pinned = self._inputs[name]
        if pinned.version is None:
            ddl = ", ".join(f"`{column}` {kind}" for column, kind in pinned.columns.items())
            return self._spark.createDataFrame([], ddl)
        uri = self._lake.storage.spark_uri(pinned.key)
        rows = self._spark.read.format("delta").option("versionAsOf", pinned.version).load(uri)
        return rows if dates is None else rows.filter(F.col(DATE_COLUMN).isin(sorted(dates)))

    def _copies_of(self, name: str, dates: Dates) -> _Copies | None:
        if self._dedupe is None or self._inputs[name].version is None:
            return None
        for (known, covered), copies in self._copies.items():
            if known == name and (covered is None or (dates is not None and dates <= covered)):
                return copies
        found = self._find_copies(name, dates, self._dedupe)
        self._copies[name, dates] = found
        return found

    def _find_copies(self, name: str, dates: Dates, dedupe: DedupeSpec) -> _Copies:
        around = None if dates is None else widened(dates, dedupe.across_days)
        arrival = F.struct(*_ARRIVAL)
        neighbours = (
            Window.partitionBy(dedupe.by)
            .orderBy(F.unix_date(DATE_COLUMN))
            .rangeBetween(-dedupe.across_days, dedupe.across_days)
        )
        rows = (
            self._rows(name, around)
            .filter(F.col(dedupe.by).isNotNull())
            .select(dedupe.by, DATE_COLUMN, *_ARRIVAL)
            .withColumn("_first", F.min(arrival).over(neighbours))
            .filter(arrival > F.col("_first"))
        )
        if dates is not None:
            rows = rows.filter(F.col(DATE_COLUMN).isin(sorted(dates)))
        rows = rows.select(*_ARRIVAL, DATE_COLUMN).persist()
        per_date = {row[DATE_COLUMN]: row["count"] for row in rows.groupBy(DATE_COLUMN).count().collect()}
        return _Copies(rows, per_date)


def _union(wanted: Sequence[Dates]) -> Dates:
    together: set[dt.date] = set()
    for dates in wanted:
        if dates is None:
            return None
        together |= dates
    return frozenset(together)
