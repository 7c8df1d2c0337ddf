"""The inputs of gold tables: bronze tables held at one version, without the copies producers sent twice.

A row is a copy when another row of the same key, at most `across_days` dates away, arrived before it (the lesser
`_seq`, then `_position`). That is decided by the neighbouring dates alone, so a rebuild of some dates agrees with a
rebuild of all. For tables with a grain the neighbouring hours decide, up to `across_hours` away. Where a table is
rebuilt by something else, copies are those of the same value. They are looked up once per input over narrow columns;
the SQL then reads the table without them.

What a table was built from its own newest commit says, hence it is true whatever happened to a job. A commit that
changed rows without saying what from (a RESTORE, somebody's DELETE) makes the table's content unknown, and an unknown
content is rebuilt whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.gold.file_scan import Scan, rows_in, scanned_rows
from deltaworks.gold.model_tables import ScoresOf, scored_rows
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec, place_in_other, view_name
from deltaworks.specs.models import MODEL_COLUMNS
from deltaworks.specs.mutation import DELETED_COLUMN, NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

_ARRIVAL = ("_seq", "_position")
#: Keys of `userMetadata` beside those of every commit.
BUILT_FROM = "built_from"
FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True)
class PinnedInput:
    """A bronze, keyed, mapping or gold table at the version a build reads, perhaps another pipeline's gold table.
    `version` and `table_id` are None while it is not there.

    `of_events` is whether its rows are events, which may have come more than once; `date_column` has its dates, and is
    empty where it has none. Of a table with `compared_by`, a date of its rows, rows of two versions are compared.
    `time_column` has the instants of its rows, each within the date of its row; it is empty where no column has.
    With `scores` it is the table of a model, which gives scores to the rows of another input.
    """

    name: str
    key: str
    version: int | None
    table_id: str | None
    columns: Mapping[str, str]
    of_events: bool = True
    date_column: str = DATE_COLUMN
    compared_by: str = ""
    time_column: str = ""
    scores: ScoresOf | None = None


def pin_inputs(lake: Lake, spec: PipelineSpec, names: Sequence[str]) -> dict[str, PinnedInput]:
    """The named tables as they are now."""
    pinned = {}
    events = {table.name for table in spec.event_tables}
    dated = {table.name: table.partition_by for table in spec.gold.tables}
    dated |= {reference.name: "" for reference in spec.references}
    compared = {table.name: table.checks.intervals.start for table in spec.gold.tables if table.checks.intervals}
    compared |= {reference.name: reference.dated_by for reference in spec.references if reference.dated_by}
    scores = {model.name: ScoresOf(model.features, model.at) for model in spec.models}
    dated |= dict.fromkeys(scores, "")
    compared |= dict.fromkeys(scores, "valid_from_date")
    times = {table.name: table.grain.column for table in spec.gold.tables if table.grain}
    times |= {table.name: TIME_COLUMN for table in spec.tables if TIME_COLUMN in table.column_types()}
    for name in names:
        other = place_in_other(name)
        key = paths.table(*(other or (spec.pipeline, name)))
        table = lake.open(key)
        if other is not None and table is not None:
            # A gold table has one, which its pipeline declares; here its log says it.
            dated[name] = table.metadata().partition_columns[0]
        pinned[name] = PinnedInput(
            name=name,
            key=key,
            version=table.version() if table else None,
            table_id=str(table.metadata().id) if table else None,
            columns=columns_of(spec, name),
            of_events=name in events,
            date_column=dated.get(name, DATE_COLUMN),
            compared_by=compared.get(name, ""),
            time_column=times.get(name, ""),
            scores=scores.get(name),
        )
    return pinned


def columns_of(spec: PipelineSpec, name: str) -> Mapping[str, str]:
    """The columns of a table that gold may read, with their types; none are declared of a gold table."""
    if place_in_other(name) is not None or name in {table.name for table in spec.gold.tables}:
        return {}
    if spec.mutations is not None and name == spec.mutations.names:
        return NAMES_COLUMNS
    keyed = {table.name: table.types for table in spec.keyed_tables}
    keyed |= {reference.name: reference.column_types() for reference in spec.references}
    keyed |= {model.name: MODEL_COLUMNS for model in spec.models}
    return keyed[name] if name in keyed else spec.table(name).column_types()


@dataclass(frozen=True, slots=True)
class _Copies:
    """The rows to leave out of a part of an input, and how many there are of each of its values."""

    rows: DataFrame
    per_value: Mapping[Any, int]


class InputViews:
    """Temporary views of the inputs, named as gold SQL names them. One build at a time per session."""

    def __init__(
        self, spark: SparkSession, lake: Lake, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._inputs = dict(inputs)
        self._dedupe = dedupe
        self._copies: dict[tuple[str, Part], _Copies] = {}
        self._registered: set[str] = set()
        self._tables: dict[tuple[str, int | None], DeltaTable | None] = {}
        self._scans: dict[tuple[str, Part], DataFrame] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._registered:
            self._spark.catalog.dropTempView(name)
        for copies in self._copies.values():
            copies.rows.unpersist()

    def add(self, inputs: Mapping[str, PinnedInput]) -> None:
        """Make more inputs known: gold tables, once those they are made of are built."""
        self._inputs.update(inputs)

    def prepare(self, plans: Sequence[GoldPlan]) -> None:
        """Look up the copies once for all plans that read an input, instead of once for each."""
        for name in self._inputs:
            parts: dict[tuple[str, bool], Part] = {}
            for part in (plan.input_of(name) for plan in plans if name in plan.table.reads):
                kind = (part.column, part.by_hours)
                parts[kind] = parts.get(kind, part).union(part)
            for part in parts.values():
                self._copies_of(name, part)

    def register(self, reads: Sequence[str], part: Part) -> None:
        """Make the views for one gold table, holding the rows of `part`."""
        # What gives scores comes after the rows it gives them to.
        for name in sorted(reads, key=lambda read: self._inputs[read].scores is not None):
            rows, scores = self._rows(name, part), self._inputs[name].scores
            if scores is not None:
                rows = scored_rows(rows, self._spark.table(scores.features), scores)
            copies = self._copies_of(name, part)
            if copies is not None and copies.per_value:
                rows = rows.join(copies.rows, on=list(_ARRIVAL), how="left_anti")
            rows.createOrReplaceTempView(view_name(name))
            self._registered.add(view_name(name))

    def copies_dropped(self, reads: Sequence[str], part: Part) -> int:
        """How many rows the views over `part` leave out as copies."""
        total = 0
        for name in reads:
            copies = self._copies_of(name, part)
            per_value = copies.per_value if copies else {}
            total += sum(count for value, count in per_value.items() if part.has(value))
        return total

    def rows_of(self, reads: Sequence[str]) -> int | None:
        """Rows of all files of these inputs, by their logs; None where a file says nothing of its rows."""
        counted = [rows_in(self._opened(self._inputs[name])) for name in reads]
        return None if None in counted else sum(rows or 0 for rows in counted)

    def _rows(self, name: str, part: Part) -> DataFrame:
        """The rows of `part` that are there for readers: none that a mutation has deleted."""
        pinned = self._inputs[name]
        if pinned.version is None:
            ddl = ", ".join(f"`{column}` {kind}" for column, kind in pinned.columns.items())
            return self._spark.createDataFrame([], ddl)
        part, column = self._placed(pinned, part)
        rows = self._scanned(pinned, part, column)
        if DELETED_COLUMN in pinned.columns and DELETED_COLUMN in rows.columns:
            rows = rows.filter(~F.coalesce(DELETED_COLUMN, F.lit(False)))
        return rows_within(rows, part, column, pinned.time_column)

    def _placed(self, pinned: PinnedInput, part: Part) -> tuple[Part, str]:
        """The part in terms of an input, with the column of it that the part's values are of."""
        if part.column == DATE_COLUMN and not pinned.date_column:
            return Part(DATE_COLUMN, None), DATE_COLUMN
        if part.by_hours and not pinned.time_column:
            part = part.whole_dates()
        return part, pinned.date_column if part.column == DATE_COLUMN else part.column

    def _scanned(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        """At least the rows of the part, of the version that is pinned; its files are looked for once."""
        place = (pinned.name, part)
        if place not in self._scans:
            self._scans[place] = self._scan(pinned, part, column)
        return self._scans[place]

    def _scan(self, pinned: PinnedInput, part: Part, column: str) -> DataFrame:
        if pinned.version is not None and (opened := self._opened(pinned)) is not None:
            scan = Scan(pinned.key, pinned.version, part, column, pinned.time_column)
            if (rows := scanned_rows(self._spark, self._lake, opened, scan)) is not None:
                return rows
        uri = self._lake.storage.spark_uri(pinned.key)
        return self._spark.read.format("delta").option("versionAsOf", pinned.version).load(uri)

    def _opened(self, pinned: PinnedInput) -> DeltaTable | None:
        """The input at its version as delta-rs has it, read once; None where there is no table any more."""
        place = (pinned.key, pinned.version)
        if place not in self._tables:
            table = self._lake.open(pinned.key)
            if table is not None and pinned.version is not None and table.version() != pinned.version:
                table.load_as_version(pinned.version)
            self._tables[place] = table
        return self._tables[place]

    def _copies_of(self, name: str, part: Part) -> _Copies | None:
        if self._dedupe is None or self._inputs[name].version is None or not self._inputs[name].of_events:
            return None
        for (input_name, covered), copies in self._copies.items():
            if input_name == name and covered.covers(part):
                return copies
        copies = self._find_copies(name, part, self._dedupe)
        self._copies[name, part] = copies
        return copies

    def _find_copies(self, name: str, part: Part, dedupe: DedupeSpec) -> _Copies:
        by_date = part.column == DATE_COLUMN
        # By what rows are near, and how far apart copies may lie.
        if part.by_hours:
            near, across = F.floor(F.unix_seconds(F.col(TIME_COLUMN)) / 3_600), dedupe.across_hours or 0
            around = part.widened_by_hours(across)
        else:
            near, across = F.unix_date(DATE_COLUMN), dedupe.across_days
            around = part.widened(across) if by_date else part
        value = near if part.by_hours else F.col(part.column)
        arrival = F.struct(*_ARRIVAL)
        neighbours = (
            Window.partitionBy(dedupe.by, *([] if by_date else [part.column]))
            .orderBy(near)
            .rangeBetween(-across, across)
        )
        rows = (
            self._rows(name, around)
            .filter(F.col(dedupe.by).isNotNull())
            .select(*{dedupe.by, DATE_COLUMN, part.column, *_ARRIVAL, *([TIME_COLUMN] if part.by_hours else [])})
            .withColumn("_first", F.min(arrival).over(neighbours))
            .filter(arrival > F.col("_first"))
        )
        rows = rows_within(rows, part, part.column, TIME_COLUMN)
        rows = rows.select(*_ARRIVAL, value.alias("_value")).persist()
        counts = rows.groupBy("_value").count().collect()
        return _Copies(rows, {_of_hour(row[0]) if part.by_hours else row[0]: row[1] for row in counts})


def _of_hour(number: int) -> datetime:
    """The first instant of an hour, by how many there were since 1970."""
    return datetime.fromtimestamp(number * 3_600, UTC)


def rows_within(rows: DataFrame, part: Part, column: str, time_column: str = "") -> DataFrame:
    """The rows that are in `part` by a column. Rows without a value are in none but that of all.

    Args:
        time_column: has the instants of rows, for a part with hours.
    """
    if part.values is None:
        return rows
    if part.hours:
        return rows.filter(part.condition(column, time_column))
    inside = F.col(column).isin(sorted(part.values))
    if part.since is not None:
        onwards = F.col(column) >= F.lit(part.since)
        inside = inside | onwards if part.values else onwards
    return rows.filter(inside)


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    """Version of each input, and the digest of the definition. `reason` says why nothing can be traced."""

    versions: Mapping[str, int]
    fingerprint: str
    reason: str = ""

    @property
    def traceable(self) -> bool:
        """Whether the table's content follows from `versions`."""
        return not self.reason


def read_built_from(lake: Lake, key: str, table: DeltaTable | None = None) -> BuiltFrom:
    """What the gold table at `key` was last built from, by the newest commit that changed its rows.

    Args:
        table: open already, where it is.
    """
    table = table or lake.open(key)
    if table is None:
        return _unknown("it does not exist yet")
    for commit in commit_history(lake, key, newest=table.version()):
        if BUILT_FROM in commit.metadata:
            return BuiltFrom(commit.metadata[BUILT_FROM], str(commit.metadata.get(FINGERPRINT)))
        if commit.changes_rows:
            return _unknown(f"its version {commit.version} ({commit.operation}) is not a build")
    return _unknown("its log no longer says what it was built from")


def _unknown(reason: str) -> BuiltFrom:
    return BuiltFrom({}, "", reason)


def fingerprint(table: GoldTableSpec, sql: str, dedupe: DedupeSpec | None, inputs: Mapping[str, PinnedInput]) -> str:
    """A digest of all but data that the table's content follows from: the SQL, the rules, which tables are read."""
    definition = [
        sql,
        table.model_dump(mode="json", exclude={"description", "checks", "refresh_seconds"}),
        dedupe.model_dump(mode="json", exclude={"across_hours" if table.grain is None else "across_days"})
        if dedupe
        else None,
        {name: pinned.table_id for name, pinned in inputs.items()},
    ]
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def note_fresh(home: PipelineHome, table: str, *, now: datetime | None = None) -> None:
    """Say that a build has just brought the table up to date, or found that it is."""
    at = now.isoformat() if now else iso_now()
    home.objects.put(paths.gold_state(home.pipeline, table), json.dumps({"at": at}).encode())
