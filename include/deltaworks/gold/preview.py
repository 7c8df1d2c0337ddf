"""Answers the SQL of a gold table with DuckDB, without Spark and without writing anything.

The inputs are those of a build: pinned versions, only the dates that the SQL needs for its own, without rows deleted by
mutations, and of several rows of one event the one that arrived first within the dedupe window. Reference tables are
read from their files, as a build would load them. A gold table of the pipeline that is not built yet is answered first.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from deltaworks.control.foreign_errors import data_file_error
from deltaworks.errors import ConfigError
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part, dedupe_window_part, shift_dates, window_size
from deltaworks.gold.pinned_inputs import PinnedInput, pin_inputs
from deltaworks.gold.plan import Answer, GoldPlan, affected_days, dated_plan, full_plan
from deltaworks.gold.references import reference_rows
from deltaworks.gold.translation import Difference, Translation, translate
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec, view_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import partitions_of
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake, duckdb_source

#: Newest dates of the inputs that a preview answers without requested ones.
DEFAULT_DATES: Final = 7
#: The rows without those whose key arrived earlier within the window. Only keys that occur more than once are compared.
_FIRST_ARRIVALS: Final = """
    SELECT * FROM {rows} AS rows_ ANTI JOIN (
        SELECT _seq, _position FROM (
            SELECT {partition}, {bucket} AS bucket_, _seq, _position FROM {rows}
            WHERE "{key}" IN (SELECT "{key}" FROM {rows} GROUP BY "{key}" HAVING count(*) > 1)
        ) QUALIFY (_seq, _position) > min((_seq, _position)) OVER (
            PARTITION BY {partition} ORDER BY bucket_ RANGE BETWEEN {window} PRECEDING AND {window} FOLLOWING
        )
    ) AS copies_ USING (_seq, _position)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldPreview:
    """The answer of a gold table's SQL, as a build would commit it.

    Args:
        dates: the answered dates as text; None if the SQL was answered over all rows.
        versions: of the inputs read; None for files and for gold tables that are not built.
    """

    table: str
    rows: pa.Table
    dates: tuple[str, ...] | None
    versions: Mapping[str, int | None]
    translation: Translation
    seconds: float

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Where DuckDB spells or computes an expression of the SQL in another way than Spark."""
        return self.translation.differences


def preview_gold(
    catalog: Catalog, pipeline: str, name: str, *, dates: frozenset[dt.date] | None = None, all_dates: bool = False
) -> GoldPreview:
    """Answers a gold table's SQL for these dates, by default the newest of its inputs. Reads only.

    A table that is not built by date is answered over all rows, and cannot be restricted.

    Args:
        all_dates: answer all dates, as the first build does.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, GOLD_DATES_INVALID, GOLD_SQL_INVALID, GOLD_SQL_NOT_TRANSLATABLE,
            GOLD_COLUMN_MISSING, or GOLD_PREVIEW_UNSUPPORTED, an input does not exist or needs Spark.
        OSError: the file of the SQL cannot be read.
    """
    started = time.monotonic()
    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    table = next((table for table in spec.gold.tables if table.name == name), None)
    if table is None:
        declared = [table.name for table in spec.gold.tables]
        hint = nearest_names_hint([name], declared, prefix="Its gold tables are")
        raise ConfigError("GOLD_TABLE_UNKNOWN", f"Pipeline {pipeline!r} has no gold table {name}.", hint=hint)
    if dates is not None and not table.is_partitioned_by_date:
        raise ConfigError(
            "GOLD_DATES_INVALID",
            f"{pipeline}.{name} is not built by date, but with all rows of its inputs.",
            hint="Leave the dates out.",
        )
    answers = _Answers(catalog, spec, lake, all_dates=all_dates)
    rows, plan, translation = answers.answer(table, dates)
    return GoldPreview(
        table=f"{pipeline}.{name}",
        rows=rows.sort_by([(column, "ascending") for column in _order(table)]),
        dates=plan.output.labels,
        versions={read: answers.inputs[read].version for read in table.reads},
        translation=translation,
        seconds=time.monotonic() - started,
    )


def _order(table: GoldTableSpec) -> list[str]:
    """Returns the columns by which rows are shown in order."""
    return [table.partition_by, *([] if table.grain is None else [table.grain.column])]


class _Answers:
    """Answers the tables of one pipeline over its inputs at the versions first pinned."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec, lake: Lake, *, all_dates: bool) -> None:
        self._catalog, self._spec, self._lake, self._all_dates = catalog, spec, lake, all_dates
        self._references = {reference.name: reference for reference in spec.references}
        self._gold = {table.name: table for table in spec.gold.tables}
        self.inputs: dict[str, PinnedInput] = {}

    def answer(self, table: GoldTableSpec, dates: frozenset[dt.date] | None) -> tuple[pa.Table, GoldPlan, Translation]:
        """Returns the rows of a table, the plan that they follow, and its translated SQL."""
        new = [name for name in table.reads if name not in self.inputs]
        self.inputs |= pin_inputs(self._lake, self._spec, new)
        inputs = {name: self.inputs[name] for name in table.reads}
        path = self._catalog.folder(self._spec.pipeline) / table.sql
        translation = translate(path.read_text(encoding="utf-8"), source=str(path))
        plan = self._plan(table, inputs, dates)
        ready = {name: rows for name in table.reads if (rows := self._computed(table, plan, name)) is not None}
        rows = planned_rows(self._lake, plan, translation, inputs, self._spec.gold.dedupe, ready=ready)
        return rows, plan, translation

    def _plan(
        self, table: GoldTableSpec, inputs: Mapping[str, PinnedInput], dates: frozenset[dt.date] | None
    ) -> GoldPlan:
        if not table.is_partitioned_by_date:
            return full_plan(table, "it is not built by date")
        if self._all_dates:
            return full_plan(table, "all dates were requested")
        dates = dates or self._newest_dates(table, inputs)
        return dated_plan(table, dates) if dates else full_plan(table, "no input has dates")

    def _newest_dates(self, table: GoldTableSpec, inputs: Mapping[str, PinnedInput]) -> frozenset[dt.date]:
        """Returns the dates of the table that the newest dates of its inputs affect."""
        affected: set[dt.date] = set()
        for name, pinned in inputs.items():
            affects = table.affects_for_input(name)
            if not isinstance(affects, AffectsSpec):
                continue
            if pinned.version is None and name in self._gold:
                below = self._gold[name]
                self.inputs |= pin_inputs(self._lake, self._spec, [r for r in below.reads if r not in self.inputs])
                input_dates = self._newest_dates(below, {read: self.inputs[read] for read in below.reads})
            else:
                input_dates = frozenset(_partition_dates(pinned))
            if input_dates:
                newest = (max(input_dates) - dt.timedelta(days=days) for days in range(DEFAULT_DATES))
                affected |= shift_dates(newest, affected_days(affects))
        return frozenset(affected)

    def _computed(self, table: GoldTableSpec, plan: GoldPlan, name: str) -> pa.Table | None:
        """Returns the rows of an input that no table of the lake has; None if the lake has it."""
        if name in self._references:
            return reference_rows(self._catalog, self._spec.pipeline, self._references[name])
        pinned = self.inputs[name]
        build = f"`deltaworks gold build {self._spec.pipeline} --tables {table.name}` builds {table.name} with Spark."
        if pinned.scored_input is not None:
            raise ConfigError(
                "GOLD_PREVIEW_UNSUPPORTED",
                f"{self._spec.pipeline}.{table.name} reads scores of the model {name}, which only Spark computes.",
                hint=build,
            )
        if pinned.version is not None:
            return None
        if name in self._gold:
            part = plan.input_of(name)
            dates = frozenset(value for value in part.values or () if isinstance(value, dt.date))
            below = self._gold[name]
            return self.answer(below, dates if dates and below.is_partitioned_by_date else None)[0]
        if not pinned.columns:
            raise ConfigError(
                "GOLD_PREVIEW_UNSUPPORTED",
                f"{self._spec.pipeline}.{table.name} reads {name}, which is not built yet.",
                hint=f"Build {name} first: `deltaworks gold build {name.partition('.')[0]}`.",
            )
        return arrow_schema(dict(pinned.columns)).empty_table()


def _partition_dates(pinned: PinnedInput) -> list[dt.date]:
    """Returns the dates of an input's partitions, from its log."""
    if pinned.delta_table is None or not pinned.date_column:
        return []
    if pinned.date_column not in pinned.delta_table.metadata().partition_columns:
        return []
    values = (
        dict(partition).get(pinned.date_column)
        for partition in partitions_of(pa.table(pinned.delta_table.get_add_actions()))
    )
    return [dt.date.fromisoformat(value) for value in values if value]


def planned_rows(
    lake: Lake,
    plan: GoldPlan,
    translation: Translation,
    inputs: Mapping[str, PinnedInput],
    dedupe: DedupeSpec | None,
    *,
    ready: Mapping[str, pa.Table] | None = None,
) -> pa.Table:
    """Returns the planned rows of a gold table over its pinned inputs, computed by DuckDB.

    Args:
        ready: rows of inputs that are not read from the lake, by name.

    Raises:
        ConfigError: GOLD_SQL_NOT_TRANSLATABLE, GOLD_SQL_INVALID or GOLD_COLUMN_MISSING.
        TransientError, ContractError: a data file of an input cannot be read.
    """
    return planned_answer(lake, plan, translation, inputs, dedupe, ready=ready).rows


def planned_answer(
    lake: Lake,
    plan: GoldPlan,
    translation: Translation,
    inputs: Mapping[str, PinnedInput],
    dedupe: DedupeSpec | None,
    *,
    ready: Mapping[str, pa.Table] | None = None,
    count_duplicates: bool = False,
) -> Answer:
    """Returns the rows like `planned_rows`, with the number of duplicates omitted from the inputs.

    Args:
        count_duplicates: count them, which reads the inputs twice; otherwise the number is 0.
    """
    table = plan.table
    with duckdb_session() as session:
        session.execute("SET TimeZone = 'UTC'")
        try:
            counts = _bind_inputs(session, lake, plan, inputs, dedupe=dedupe, ready=ready or {})
            duplicates = sum(session.sql(sql).fetchall()[0][0] for sql in counts) if count_duplicates else 0
            session.execute(f"CREATE TEMP VIEW _answer AS SELECT * FROM ({translation.sql}) AS answer")
            columns = session.sql("DESCRIBE _answer").fetchall()
            _require_columns(table, [row[0] for row in columns], translation.source)
            # DuckDB sums and counts integers in 128 bits, Spark in 64.
            wide = [f'"{name}"::BIGINT AS "{name}"' for name, kind, *_ in columns if kind == "HUGEINT"]
            replaced = f" REPLACE ({', '.join(wide)})" if wide else ""
            rows = session.sql(f"SELECT *{replaced} FROM _answer WHERE {_written(plan)}").to_arrow_table()
            return Answer(rows, duplicates)
        except duckdb.Error as error:
            read = [".".join(pinned.key.split("/")[-2:]) for pinned in inputs.values()]
            raise data_file_error(error, tables=read) or translation.error(error) from error


def _require_columns(table: GoldTableSpec, columns: Sequence[str], source: str) -> None:
    for name in (table.partition_by, *([] if table.grain is None else [table.grain.column])):
        if name not in columns:
            raise ConfigError(
                "GOLD_COLUMN_MISSING",
                f"{source}: the result has no column {name!r}.",
                hint=f"Its columns are {', '.join(columns)}.",
            )


def _written(plan: GoldPlan) -> str:
    """Returns the condition of the rows that a build writes: those with a date, of the planned dates."""
    table = plan.table
    if not table.is_partitioned_by_date:
        return "true"
    if plan.output.values is None:
        return f'"{table.partition_by}" IS NOT NULL'
    return duckdb_condition(plan.output, table.partition_by, "" if table.grain is None else table.grain.column)


def _bind_inputs(
    session: duckdb.DuckDBPyConnection,
    lake: Lake,
    plan: GoldPlan,
    inputs: Mapping[str, PinnedInput],
    *,
    dedupe: DedupeSpec | None,
    ready: Mapping[str, pa.Table],
) -> list[str]:
    """Registers the inputs under their names in the SQL. Returns a query for each that counts its duplicates."""
    counts = []
    for name in plan.table.reads:
        pinned, view = inputs[name], view_name(name)
        if name in ready:
            session.register(view, ready[name])
            continue
        opened = pinned.delta_table
        if opened is None:
            session.register(view, arrow_schema(dict(pinned.columns)).empty_table())
            continue
        session.register(f"all_{view}", duckdb_source(lake, opened))
        columns = {field.name for field in opened.schema().fields}
        # A gold table or a table of another pipeline may have a column of this name with another meaning.
        is_mutable = DELETED_COLUMN in pinned.columns and DELETED_COLUMN in columns
        visible = f"NOT coalesce({DELETED_COLUMN}, false)" if is_mutable else "true"
        rows, part = f'(SELECT * FROM "all_{view}" WHERE {visible})', plan.input_of(name)
        selected = f"SELECT * FROM {rows} WHERE {input_condition(part, pinned)}"
        if dedupe is not None and pinned.has_events:
            counts.append(f'SELECT (SELECT count(*) FROM ({selected})) - (SELECT count(*) FROM "{view}")')
            selected = _first_arrivals(pinned, part, dedupe, rows)
        session.execute(f'CREATE TEMP VIEW "{view}" AS {selected}')
    return counts


def _first_arrivals(pinned: PinnedInput, part: Part, dedupe: DedupeSpec, rows: str) -> str:
    """Returns the query of an input's rows of a part, without duplicates.

    Args:
        rows: the query of all rows, without deleted ones.
    """
    near = dedupe_window_part(dedupe, part)
    bucket = f"floor(epoch({TIME_COLUMN}) / 3600)" if part.is_hourly else f"({DATE_COLUMN} - DATE '1970-01-01')"
    partition = [dedupe.by, *([] if part.column == DATE_COLUMN else [part.column])]
    deduplicated = _FIRST_ARRIVALS.format(
        rows=f"(SELECT * FROM {rows} WHERE {input_condition(near, pinned)})",
        key=dedupe.by,
        partition=", ".join(f'"{column}"' for column in partition),
        bucket=bucket,
        window=window_size(dedupe, part),
    )
    return f"SELECT * FROM ({deduplicated}) WHERE {input_condition(part, pinned)}"


def input_condition(part: Part, pinned: PinnedInput) -> str:
    """Returns the condition of a part's rows in an input; true without a column that the part selects by."""
    if part.is_hourly and not pinned.time_column:
        part = part.without_hours()
    column = pinned.date_column if part.column == DATE_COLUMN else part.column
    return duckdb_condition(part, column, pinned.time_column) if column else "true"


def duckdb_condition(part: Part, column: str, time_column: str) -> str:
    """Returns the condition of a part's rows in DuckDB's dialect.

    Args:
        column, time_column: the date and timestamp columns of the table.
    """
    if part.values is None:
        return "true"
    condition = part.condition(column, time_column)
    return condition.replace("`", '"').replace("DATE'", "DATE '").replace("TIMESTAMP'", "TIMESTAMPTZ '")
