"""Decides from a gold table's SQL whether its answer can be kept up with the new rows of its input alone.

An answer is mergeable if it groups the rows of one event table by expressions of a row, one of which is the date that
partitions both tables, and if each column is a group or is computed from aggregates whose partial results can be
combined: `count`, `sum` of integers or decimals, `min`, `max`, `count_if`, `bool_and`, `bool_or`, and
`count(DISTINCT ...)`. The last needs the set of values that were counted, the others one value a group.

Expressions are limited to those that Spark and DuckDB evaluate alike. Everything else is left to Spark, with the reason
and the place in the SQL. The classes follow OpenIVM ("OpenIVM: a SQL-to-SQL Compiler for Incremental Computations",
SIGMOD 2024), which derives them from the operators of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError

from deltaworks.specs.checks.portable_query import (
    Kind,
    RowReader,
    UnsupportedSqlError,
    converted_number,
    kind_of,
    parse_spark,
    quoted_name,
)
from deltaworks.specs.gold import AffectsSpec, GoldTableSpec, view_name
from deltaworks.specs.pipeline import PipelineSpec

#: The column that partitions event tables.
DATE_COLUMN: Final = "event_date"
#: How a table is refreshed: by partial sums, by these and sets of counted values, or by its changed partitions.
RefreshClass = Literal["linear", "distinct", "partition", "whole"]
#: Clauses of a SELECT that a mergeable answer may have.
_CLAUSES: Final = frozenset({"expressions", "from_", "where", "group", "kind", "operation_modifiers"})


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A column of partial results, with DuckDB's SQL over rows, and over partial results to combine them."""

    name: str
    sql: str
    combined_sql: str


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """A column with the number of different values of `sql`, an expression over rows; null is not counted."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class MergeableQuery:
    """The parts of a mergeable answer, in DuckDB's dialect.

    - `columns`: the columns of the input that it reads.
    - `groups`: the names of group columns in partial results, with their SQL over rows; `date_group` is the date's.
    - `outputs`: the answer's columns, with their SQL over partial results.
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[str, str], ...]
    date_group: str
    sums: tuple[PartialSum, ...]
    distincts: tuple[DistinctCount, ...]
    where: str
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Refresh:
    """How a gold table is refreshed. `reason` says why no class with less work fits, with the line of the SQL."""

    refresh_class: RefreshClass
    reason: str = ""
    query: MergeableQuery | None = None


def classify(table: GoldTableSpec, sql: str, spec: PipelineSpec) -> Refresh:
    """Returns how a gold table is refreshed, from its declaration and its SQL."""
    fallback: RefreshClass = "whole" if table.affects == "all" or table.refresh == "full" else "partition"
    try:
        _require_mergeable_declaration(table, spec)
        query = _Reader(table, spec.table(table.reads[0]).column_types()).read(sql)
    except UnsupportedSqlError as problem:
        return Refresh(fallback, problem.describe(sql))
    except SqlglotError as error:
        return Refresh(fallback, f"its SQL cannot be analysed: {str(error).splitlines()[0]}")
    return Refresh("distinct" if query.distincts else "linear", query=query)


def _require_mergeable_declaration(table: GoldTableSpec, spec: PipelineSpec) -> None:
    if table.refresh == "full":
        raise UnsupportedSqlError("it declares refresh: full")
    if len(table.reads) != 1:
        raise UnsupportedSqlError(f"it reads {len(table.reads)} tables")
    source = next((event for event in spec.event_tables if event.name == table.reads[0]), None)
    if source is None:
        raise UnsupportedSqlError(f"{table.reads[0]} is no event table")
    if source.mutable is not None:
        raise UnsupportedSqlError(f"rows of {source.name} are changed by mutations")
    if tuple(source.partition_by) != (DATE_COLUMN,):
        raise UnsupportedSqlError(f"{source.name} is not partitioned by {DATE_COLUMN} alone")
    if table.grain is not None:
        raise UnsupportedSqlError("it declares a grain, so its hours are rebuilt")
    if table.affects != AffectsSpec.defaults():
        raise UnsupportedSqlError("an event affects other dates than its own")
    if spec.gold.dedupe is not None and spec.gold.dedupe.by != "event_id":
        raise UnsupportedSqlError(f"copies are found by {spec.gold.dedupe.by}, not by the event's id")


class _Reader(RowReader):
    """Reads the SQL of one gold table."""

    def __init__(self, table: GoldTableSpec, types: Mapping[str, str]) -> None:
        self._table, self._types = table, types
        self._columns: set[str] = set()
        self._groups: list[exp.Expression] = []
        self._sums: dict[str, PartialSum] = {}
        self._distincts: dict[str, DistinctCount] = {}

    def read(self, sql: str) -> MergeableQuery:
        """Returns the parts of the query.

        Raises:
            SqlglotError: the SQL cannot be parsed.
        """
        select = parse_spark(sql)
        if not isinstance(select, exp.Select):
            raise UnsupportedSqlError("it is no single SELECT")
        extra = next((name for name, value in select.args.items() if value and name not in _CLAUSES), None)
        if extra is not None:
            raise UnsupportedSqlError(f"it has {extra.strip('_').upper()}")
        self._alias = self._source_alias(select)
        self._read_groups(select)
        where = select.args.get("where")
        condition = "" if where is None else self.boolean(where.this)
        outputs = tuple((projection.alias_or_name, self._output(projection)) for projection in select.expressions)
        groups = tuple((f"g{number}", self.row(group)[0]) for number, group in enumerate(self._groups))
        return MergeableQuery(
            columns=tuple(sorted(self._columns)),
            groups=groups,
            date_group=self._date_group(outputs),
            sums=tuple(self._sums.values()),
            distincts=tuple(self._distincts.values()),
            where=condition,
            outputs=outputs,
        )

    def _source_alias(self, select: exp.Select) -> str:
        source = select.args["from_"].this if select.args.get("from_") is not None else None
        if not isinstance(source, exp.Table) or source.name.lower() != view_name(self._table.reads[0]).lower():
            raise UnsupportedSqlError(f"it does not read {self._table.reads[0]} alone", source)
        extra = next((name for name, value in source.args.items() if value and name not in ("this", "alias")), None)
        if extra is not None:
            raise UnsupportedSqlError(f"it reads its input with {extra}", source)
        return source.alias_or_name.lower()

    def _read_groups(self, select: exp.Select) -> None:
        group = select.args.get("group")
        if group is None:
            raise UnsupportedSqlError("it has no GROUP BY")
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise UnsupportedSqlError("its GROUP BY has grouping sets", group)
        for expression in group.expressions:
            resolved = self._resolved_group(expression, select.expressions)
            kind = self.row(resolved)[1]
            if kind == "float":
                raise UnsupportedSqlError("it groups by a floating-point number", resolved)
            if resolved not in self._groups:
                self._groups.append(resolved)

    def _resolved_group(self, expression: exp.Expression, projections: Sequence[exp.Expression]) -> exp.Expression:
        """Returns what a position or an alias in GROUP BY stands for. A column of the input comes before an alias."""
        if isinstance(expression, exp.Literal) and not expression.is_string:
            position = int(expression.this)
            if 1 <= position <= len(projections):
                return self.plain(projections[position - 1])
        if isinstance(expression, exp.Column) and expression.name not in self._types:
            for projection in projections:
                if projection.alias == expression.name:
                    return self.plain(projection)
        return self.plain(expression)

    def name_alike(self, column: exp.Column) -> None:
        """Removes the name of the only table."""
        if column.table.lower() == self._alias:
            column.set("table", None)

    def column(self, column: exp.Expression) -> tuple[str, Kind | None]:
        """Returns a column of the input; see `RowReader`."""
        declared = self._types.get(column.name)
        if declared is None or (isinstance(column, exp.Column) and column.table):
            raise UnsupportedSqlError("it is no column of the input", column)
        kind = kind_of(declared)
        if kind is None:
            raise UnsupportedSqlError(f"its type is {declared}", column)
        self._columns.add(column.name)
        return quoted_name(column.name), kind

    def _date_group(self, outputs: Sequence[tuple[str, str]]) -> str:
        source = dict(outputs).get(self._table.partition_by)
        for number, group in enumerate(self._groups):
            if source == f"g{number}" and isinstance(group, exp.Column) and group.name == DATE_COLUMN:
                return source
        raise UnsupportedSqlError(f"{self._table.partition_by} is not the {DATE_COLUMN} of its rows")

    # Columns of the answer, over partial results.

    def _output(self, projection: exp.Expression) -> str:
        if not projection.alias_or_name:
            raise UnsupportedSqlError("a column has no name", projection)
        return self._over_partials(self.plain(projection))[0]

    def _over_partials(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        plain = self.plain(expression)
        if plain in self._groups:
            return f"g{self._groups.index(plain)}", self.row(plain)[1]
        if isinstance(plain, exp.AggFunc):
            return self._aggregate(plain)
        if isinstance(plain, exp.Cast):
            sql, kind = self._over_partials(plain.this)
            if (number := converted_number(sql, kind, plain.to)) is not None:
                return number
        if isinstance(plain, exp.Coalesce):
            parts = [self._over_partials(part) for part in (plain.this, *plain.expressions)]
            if len({kind for _, kind in parts}) == 1:
                return f"coalesce({', '.join(sql for sql, _ in parts)})", parts[0][1]
        if isinstance(plain, exp.Literal):
            return self.row(plain)
        raise UnsupportedSqlError("it is neither a group nor a sum, count, minimum or maximum", plain)

    def _aggregate(self, function: exp.Expression) -> tuple[str, Kind | None]:
        argument = function.this
        if isinstance(function, exp.Count):
            return self._count(function), "integer"
        if isinstance(function, exp.CountIf) and not isinstance(argument, exp.Distinct):
            return self._count_rows(f"count(*) FILTER (WHERE {self.boolean(argument)})"), "integer"
        if isinstance(function, exp.Sum):
            sql, kind = self.row(argument)
            if kind == "integer":
                # A sum of integers has 64 bits in Spark, and an overflow is an error there too.
                return self._count_rows(f"CAST(sum({sql}) AS BIGINT)"), kind
            if kind == "decimal":
                return self._partial(f"sum({sql})", "sum({})"), kind
            raise UnsupportedSqlError("the sum of floating-point numbers depends on their order", function)
        if isinstance(function, exp.Min | exp.Max) and not function.args.get("expressions"):
            sql, kind = self.row(argument)
            name = "min" if isinstance(function, exp.Min) else "max"
            if kind not in ("float", "boolean"):
                return self._partial(f"{name}({sql})", f"{name}({{}})"), kind
        if isinstance(function, exp.LogicalAnd | exp.LogicalOr):
            name = "bool_and" if isinstance(function, exp.LogicalAnd) else "bool_or"
            return self._partial(f"{name}({self.boolean(argument)})", f"{name}({{}})"), "boolean"
        raise UnsupportedSqlError("its partial results cannot be combined", function)

    def _count(self, function: exp.Expression) -> str:
        argument = function.this
        if function.args.get("expressions"):
            raise UnsupportedSqlError("it counts several expressions", function)
        if isinstance(argument, exp.Star):
            return self._count_rows("count(*)")
        if not isinstance(argument, exp.Distinct):
            return self._count_rows(f"count({self.row(argument)[0]})")
        if len(argument.expressions) != 1:
            raise UnsupportedSqlError("it counts combinations of several expressions", function)
        sql, kind = self.row(argument.expressions[0])
        if kind == "float":
            raise UnsupportedSqlError("it counts different floating-point numbers", function)
        self._distincts.setdefault(sql, DistinctCount(f"d{len(self._distincts)}", sql))
        return self._distincts[sql].name

    def _count_rows(self, sql: str) -> str:
        return self._partial(sql, "CAST(sum({}) AS BIGINT)")

    def _partial(self, sql: str, combined: str) -> str:
        """Returns the name of a column of partial results. Equal aggregates share one."""
        name = f"s{len(self._sums)}"
        self._sums.setdefault(sql, PartialSum(name, sql, combined.format(name)))
        return self._sums[sql].name
