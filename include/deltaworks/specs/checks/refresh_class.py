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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from deltaworks.specs.gold import AffectsSpec, GoldTableSpec, view_name
from deltaworks.specs.pipeline import PipelineSpec

#: The column that partitions event tables.
DATE_COLUMN: Final = "event_date"
#: How a table is refreshed: by partial sums, by these and sets of counted values, or by its changed partitions.
RefreshClass = Literal["linear", "distinct", "partition", "whole"]
#: What an expression yields, as far as both engines compare it alike.
_Kind = Literal["text", "integer", "decimal", "float", "boolean", "date", "time"]
_KINDS: Final[dict[str, _Kind]] = {
    "string": "text",
    "int": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "time",
}
_NUMBERS: Final = frozenset({"integer", "decimal"})
_COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_TRUNCATED_TO: Final = frozenset({"DAY", "HOUR", "MINUTE", "SECOND"})
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


class _NotMergeable(Exception):
    """The answer cannot be merged; with the expression at fault."""

    def __init__(self, reason: str, at: exp.Expression | None = None) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


def classify(table: GoldTableSpec, sql: str, spec: PipelineSpec) -> Refresh:
    """Returns how a gold table is refreshed, from its declaration and its SQL."""
    fallback: RefreshClass = "whole" if table.affects == "all" or table.refresh == "full" else "partition"
    try:
        _require_mergeable_declaration(table, spec)
        query = _Reader(table, spec.table(table.reads[0]).column_types()).read(sql)
    except _NotMergeable as problem:
        return Refresh(fallback, f"{problem.reason}{_place(problem.at, sql)}")
    except SqlglotError as error:
        return Refresh(fallback, f"its SQL cannot be analysed: {str(error).splitlines()[0]}")
    return Refresh("distinct" if query.distincts else "linear", query=query)


def _require_mergeable_declaration(table: GoldTableSpec, spec: PipelineSpec) -> None:
    if table.refresh == "full":
        raise _NotMergeable("it declares refresh: full")
    if len(table.reads) != 1:
        raise _NotMergeable(f"it reads {len(table.reads)} tables")
    source = next((event for event in spec.event_tables if event.name == table.reads[0]), None)
    if source is None:
        raise _NotMergeable(f"{table.reads[0]} is no event table")
    if source.mutable is not None:
        raise _NotMergeable(f"rows of {source.name} are changed by mutations")
    if tuple(source.partition_by) != (DATE_COLUMN,):
        raise _NotMergeable(f"{source.name} is not partitioned by {DATE_COLUMN} alone")
    if table.grain is not None:
        raise _NotMergeable("it declares a grain, so its hours are rebuilt")
    if table.affects != AffectsSpec.defaults():
        raise _NotMergeable("an event affects other dates than its own")
    if spec.gold.dedupe is not None and spec.gold.dedupe.by != "event_id":
        raise _NotMergeable(f"copies are found by {spec.gold.dedupe.by}, not by the event's id")


def _place(at: exp.Expression | None, sql: str) -> str:
    """Returns the line of an expression, as text to append."""
    if at is None:
        return ""
    lines = [node.meta["line"] for node in at.walk() if node.meta.get("line")]
    text = " ".join(at.sql(dialect="spark").split())
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f": line {min(lines)}, {shown}" if lines else f": {shown}"


class _Reader:
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
        select = sqlglot.parse_one(sql, read="spark")
        if not isinstance(select, exp.Select):
            raise _NotMergeable("it is no single SELECT")
        extra = next((name for name, value in select.args.items() if value and name not in _CLAUSES), None)
        if extra is not None:
            raise _NotMergeable(f"it has {extra.strip('_').upper()}")
        self._alias = self._source_alias(select)
        self._read_groups(select)
        where = select.args.get("where")
        condition = "" if where is None else self._boolean(where.this)
        outputs = tuple((projection.alias_or_name, self._output(projection)) for projection in select.expressions)
        groups = tuple((f"g{number}", self._row(group)[0]) for number, group in enumerate(self._groups))
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
            raise _NotMergeable(f"it does not read {self._table.reads[0]} alone", source)
        extra = next((name for name, value in source.args.items() if value and name not in ("this", "alias")), None)
        if extra is not None:
            raise _NotMergeable(f"it reads its input with {extra}", source)
        return source.alias_or_name.lower()

    def _read_groups(self, select: exp.Select) -> None:
        group = select.args.get("group")
        if group is None:
            raise _NotMergeable("it has no GROUP BY")
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise _NotMergeable("its GROUP BY has grouping sets", group)
        for expression in group.expressions:
            resolved = self._resolved_group(expression, select.expressions)
            kind = self._row(resolved)[1]
            if kind == "float":
                raise _NotMergeable("it groups by a floating-point number", resolved)
            if resolved not in self._groups:
                self._groups.append(resolved)

    def _resolved_group(self, expression: exp.Expression, projections: Sequence[exp.Expression]) -> exp.Expression:
        """Returns what a position or an alias in GROUP BY stands for. A column of the input comes before an alias."""
        if isinstance(expression, exp.Literal) and not expression.is_string:
            position = int(expression.this)
            if 1 <= position <= len(projections):
                return self._plain(projections[position - 1])
        if isinstance(expression, exp.Column) and expression.name not in self._types:
            for projection in projections:
                if projection.alias == expression.name:
                    return self._plain(projection)
        return self._plain(expression)

    def _plain(self, expression: exp.Expression) -> exp.Expression:
        """Returns an expression without alias, parentheses and the name of its only table, to compare it."""
        bare = expression.copy()
        while isinstance(bare, exp.Alias | exp.Paren):
            bare = bare.this
        for column in list(bare.find_all(exp.Column)):
            if column.table.lower() == self._alias:
                column.set("table", None)
        return bare

    def _date_group(self, outputs: Sequence[tuple[str, str]]) -> str:
        source = dict(outputs).get(self._table.partition_by)
        for number, group in enumerate(self._groups):
            if source == f"g{number}" and isinstance(group, exp.Column) and group.name == DATE_COLUMN:
                return source
        raise _NotMergeable(f"{self._table.partition_by} is not the {DATE_COLUMN} of its rows")

    # Columns of the answer, over partial results.

    def _output(self, projection: exp.Expression) -> str:
        if not projection.alias_or_name:
            raise _NotMergeable("a column has no name", projection)
        return self._over_partials(self._plain(projection))[0]

    def _over_partials(self, expression: exp.Expression) -> tuple[str, _Kind | None]:
        plain = self._plain(expression)
        if plain in self._groups:
            return f"g{self._groups.index(plain)}", self._row(plain)[1]
        if isinstance(plain, exp.AggFunc):
            return self._aggregate(plain)
        if isinstance(plain, exp.Cast) and (target := _decimal_or_integer(plain.to)) is not None:
            sql, kind = self._over_partials(plain.this)
            if kind in _NUMBERS:
                return f"CAST({sql} AS {target[0]})", target[1]
        if isinstance(plain, exp.Coalesce):
            parts = [self._over_partials(part) for part in (plain.this, *plain.expressions)]
            if len({kind for _, kind in parts}) == 1:
                return f"coalesce({', '.join(sql for sql, _ in parts)})", parts[0][1]
        if isinstance(plain, exp.Literal):
            return self._row(plain)
        raise _NotMergeable("it is neither a group nor a sum, count, minimum or maximum", plain)

    def _aggregate(self, function: exp.Expression) -> tuple[str, _Kind | None]:
        argument = function.this
        if isinstance(function, exp.Count):
            return self._count(function), "integer"
        if isinstance(function, exp.CountIf) and not isinstance(argument, exp.Distinct):
            return self._count_rows(f"count(*) FILTER (WHERE {self._boolean(argument)})"), "integer"
        if isinstance(function, exp.Sum):
            sql, kind = self._row(argument)
            if kind == "integer":
                # A sum of integers has 64 bits in Spark, and an overflow is an error there too.
                return self._count_rows(f"CAST(sum({sql}) AS BIGINT)"), kind
            if kind == "decimal":
                return self._partial(f"sum({sql})", "sum({})"), kind
            raise _NotMergeable("the sum of floating-point numbers depends on their order", function)
        if isinstance(function, exp.Min | exp.Max) and not function.args.get("expressions"):
            sql, kind = self._row(argument)
            name = "min" if isinstance(function, exp.Min) else "max"
            if kind not in ("float", "boolean"):
                return self._partial(f"{name}({sql})", f"{name}({{}})"), kind
        if isinstance(function, exp.LogicalAnd | exp.LogicalOr):
            name = "bool_and" if isinstance(function, exp.LogicalAnd) else "bool_or"
            return self._partial(f"{name}({self._boolean(argument)})", f"{name}({{}})"), "boolean"
        raise _NotMergeable("its partial results cannot be combined", function)

    def _count(self, function: exp.Expression) -> str:
        argument = function.this
        if function.args.get("expressions"):
            raise _NotMergeable("it counts several expressions", function)
        if isinstance(argument, exp.Star):
            return self._count_rows("count(*)")
        if not isinstance(argument, exp.Distinct):
            return self._count_rows(f"count({self._row(argument)[0]})")
        if len(argument.expressions) != 1:
            raise _NotMergeable("it counts combinations of several expressions", function)
        sql, kind = self._row(argument.expressions[0])
        if kind == "float":
            raise _NotMergeable("it counts different floating-point numbers", function)
        self._distincts.setdefault(sql, DistinctCount(f"d{len(self._distincts)}", sql))
        return self._distincts[sql].name

    def _count_rows(self, sql: str) -> str:
        return self._partial(sql, "CAST(sum({}) AS BIGINT)")

    def _partial(self, sql: str, combined: str) -> str:
        """Returns the name of a column of partial results. Equal aggregates share one."""
        name = f"s{len(self._sums)}"
        self._sums.setdefault(sql, PartialSum(name, sql, combined.format(name)))
        return self._sums[sql].name

    # Expressions over a row.

    def _boolean(self, expression: exp.Expression) -> str:
        sql, kind = self._row(expression)
        if kind != "boolean":
            raise _NotMergeable("it is no condition", expression)
        return sql

    def _row(self, expression: exp.Expression) -> tuple[str, _Kind | None]:
        """Returns DuckDB's SQL of an expression over a row, and the kind of its result."""
        plain = self._plain(expression)
        for kinds, render in (
            (exp.Column, self._column),
            (exp.Literal | exp.Boolean | exp.Neg, self._literal),
            (exp.And | exp.Or | exp.Not | exp.Is | exp.In | exp.Between, self._condition),
            (tuple(_COMPARISONS), self._comparison),
            (exp.Coalesce | exp.Case | exp.If, self._choice),
            (exp.TimestampTrunc | exp.Cast | exp.TsOrDsToDate, self._time),
        ):
            if isinstance(plain, kinds):
                return render(plain)
        raise _NotMergeable("Spark and DuckDB may evaluate it differently", plain)

    def _column(self, column: exp.Expression) -> tuple[str, _Kind | None]:
        name = column.name
        declared = self._types.get(name)
        if declared is None or (isinstance(column, exp.Column) and column.table):
            raise _NotMergeable("it is no column of the input", column)
        kind = "decimal" if declared.startswith("decimal") else _KINDS.get(declared)
        if kind is None:
            raise _NotMergeable(f"its type is {declared}", column)
        self._columns.add(name)
        return quoted_name(name), kind

    def _literal(self, literal: exp.Expression) -> tuple[str, _Kind | None]:
        if isinstance(literal, exp.Boolean):
            return ("true" if literal.this else "false"), "boolean"
        if isinstance(literal, exp.Neg):
            sql, kind = self._row(literal.this)
            if kind in _NUMBERS:
                return f"(-{sql})", kind
        elif literal.is_string:
            quoted = str(literal.this).replace("'", "''")
            return f"'{quoted}'", "text"
        elif str(literal.this).isdigit():
            return str(literal.this), "integer"
        raise _NotMergeable("its type differs between Spark and DuckDB", literal)

    def _condition(self, condition: exp.Expression) -> tuple[str, _Kind | None]:
        if isinstance(condition, exp.Not):
            return f"(NOT {self._boolean(condition.this)})", "boolean"
        if isinstance(condition, exp.And | exp.Or):
            word = "AND" if isinstance(condition, exp.And) else "OR"
            return f"({self._boolean(condition.this)} {word} {self._boolean(condition.expression)})", "boolean"
        if isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null):
            return f"({self._row(condition.this)[0]} IS NULL)", "boolean"
        if isinstance(condition, exp.In) and condition.expressions:
            operands = self._alike(condition, condition.this, *condition.expressions)
            return f"({operands[0]} IN ({', '.join(operands[1:])}))", "boolean"
        if isinstance(condition, exp.Between):
            value, low, high = self._alike(condition, condition.this, condition.args["low"], condition.args["high"])
            return f"({value} BETWEEN {low} AND {high})", "boolean"
        raise _NotMergeable("Spark and DuckDB may evaluate it differently", condition)

    def _comparison(self, comparison: exp.Expression) -> tuple[str, _Kind | None]:
        first, second = self._alike(comparison, comparison.this, comparison.expression)
        return f"({first} {_COMPARISONS[type(comparison)]} {second})", "boolean"

    def _alike(self, operation: exp.Expression, *operands: exp.Expression) -> list[str]:
        """Returns the SQL of operands of one kind. Other comparisons convert one of them, each engine in its way."""
        read = [self._row(operand) for operand in operands]
        kinds = {"integer" if kind == "decimal" else kind for _, kind in read}
        if len(kinds) > 1 or kinds == {"float"}:
            raise _NotMergeable("it compares values of different types", operation)
        return [sql for sql, _ in read]

    def _choice(self, choice: exp.Expression) -> tuple[str, _Kind | None]:
        if isinstance(choice, exp.Coalesce):
            parts = [self._row(part) for part in (choice.this, *choice.expressions)]
            return f"coalesce({', '.join(sql for sql, _ in parts)})", self._one_kind(choice, parts)
        if isinstance(choice, exp.Case) and choice.this is not None:
            raise _NotMergeable("CASE with an operand is not analysed; use CASE WHEN", choice)
        branches = list(_branches(choice))
        values = [self._row(value) for _, value in branches]
        default = choice.args.get("default") or choice.args.get("false")
        otherwise = [] if default is None or isinstance(default, exp.Null) else [self._row(default)]
        written = " ".join(
            f"WHEN {self._boolean(condition)} THEN {sql}"
            for (condition, _), (sql, _) in zip(branches, values, strict=True)
        )
        last = f" ELSE {otherwise[0][0]}" if otherwise else ""
        return f"(CASE {written}{last} END)", self._one_kind(choice, [*values, *otherwise])

    def _one_kind(self, operation: exp.Expression, parts: Sequence[tuple[str, _Kind | None]]) -> _Kind | None:
        kinds = {kind for _, kind in parts}
        if len(kinds) != 1:
            raise _NotMergeable("its results have different types", operation)
        return kinds.pop()

    def _time(self, expression: exp.Expression) -> tuple[str, _Kind | None]:
        sql, kind = self._row(expression.this)
        if isinstance(expression, exp.TimestampTrunc):
            unit = str(expression.args["unit"].name).upper()
            if kind == "time" and unit in _TRUNCATED_TO:
                return f"date_trunc('{unit.lower()}', {sql})", "time"
            raise _NotMergeable(f"it truncates to {unit}", expression)
        to_date = isinstance(expression, exp.TsOrDsToDate) or expression.args["to"].is_type("date")
        if to_date and kind in ("time", "date") and not expression.args.get("format"):
            return f"CAST({sql} AS DATE)", "date"
        raise _NotMergeable("Spark and DuckDB may convert it differently", expression)


def quoted_name(name: str) -> str:
    """Returns a column's name in DuckDB's quotes."""
    return '"' + name.replace('"', '""') + '"'


def _branches(choice: exp.Expression) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    """Yields condition and value of each branch of CASE or IF."""
    for branch in choice.args["ifs"] if isinstance(choice, exp.Case) else [choice]:
        yield branch.this, branch.args["true"]


def _decimal_or_integer(target: exp.DataType) -> tuple[str, _Kind] | None:
    if target.is_type("decimal") and target.expressions:
        return f"DECIMAL({', '.join(part.name for part in target.expressions)})", "decimal"
    return ("BIGINT", "integer") if target.is_type("bigint") else None
