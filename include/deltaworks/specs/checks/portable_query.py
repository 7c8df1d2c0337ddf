"""Decides whether Spark and DuckDB give the same answer to a gold table's SQL, and renders it for DuckDB.

It is a list of what is allowed. Queries: SELECTs over tables, subqueries and CTEs with inner and left joins,
conditions, GROUP BY, DISTINCT, and the aggregates of `refresh_class`; differences of dates, sums of integers, and the
start of a text; `row_number()` if its order leaves no two rows equal. Expressions over a row: columns, literals,
conditions, comparisons of values of one type, choices, and parts of times and dates. All else is refused with its
place in the SQL: floating-point arithmetic and sums, functions of text, conversions, estimates, generated rows. The
SQL is rendered here and not by a translator, so nothing else reaches DuckDB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

#: What an expression yields, as far as both engines compare it alike.
Kind = Literal["text", "integer", "decimal", "float", "boolean", "date", "time"]
KINDS: Final[dict[str, Kind]] = {
    "string": "text",
    "int": "integer",
    "integer": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "time",
}
NUMBERS: Final = frozenset({"integer", "decimal"})
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
_MAX_SHOWN: Final = 60


class UnsupportedSqlError(Exception):
    """The SQL has something that is not allowed: the reason, and the expression at fault."""

    def __init__(self, reason: str, at: exp.Expression | None = None) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at

    def describe(self, sql: str) -> str:
        """Returns the reason, with the line of the expression and its text."""
        if self.at is None:
            return self.reason
        lines = [node.meta["line"] for node in self.at.walk() if node.meta.get("line")]
        text = " ".join(self.at.sql(dialect="spark").split())
        shown = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
        return f"{self.reason}: line {min(lines)}, {shown}" if lines else f"{self.reason}: {shown}"


def parse_spark(sql: str) -> exp.Expr:
    """Parses a query in Spark's dialect.

    Raises:
        UnsupportedSqlError: a text may have an escape, which sqlglot reads in another way than Spark.
        SqlglotError: the SQL cannot be parsed.
    """
    if "\\" in sql:
        raise UnsupportedSqlError("it has a backslash, and Spark reads escapes in its own way")
    return sqlglot.parse_one(sql, read="spark")


def kind_of(declared: str) -> Kind | None:
    """Returns the kind of a declared type; None if values of the type are not compared alike."""
    return "decimal" if declared.startswith("decimal") else KINDS.get(declared)


class RowReader(ABC):
    """Reads expressions over a row. Its subclasses know the columns."""

    @abstractmethod
    def column(self, column: exp.Expression) -> tuple[str, Kind | None]:
        """Returns DuckDB's SQL of a column, and its kind.

        Raises:
            UnsupportedSqlError: it is no column of the rows.
        """

    @abstractmethod
    def name_alike(self, column: exp.Column) -> None:
        """Writes a column, with or without its table, in the one form by which columns are compared."""

    def plain(self, expression: exp.Expression) -> exp.Expression:
        """Returns an expression without alias and parentheses, with its columns in one form, to compare it."""
        bare = expression.copy()
        while isinstance(bare, exp.Alias | exp.Paren):
            bare = bare.this
        for column in list(bare.find_all(exp.Column)):
            self.name_alike(column)
        return bare

    def boolean(self, expression: exp.Expression) -> str:
        sql, kind = self.row(expression)
        if kind != "boolean":
            raise UnsupportedSqlError("it is no condition", expression)
        return sql

    def row(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        """Returns DuckDB's SQL of an expression over a row, and the kind of its result."""
        plain = self.plain(expression)
        for kinds, render in (
            (exp.Column, self.column),
            (exp.Literal | exp.Boolean | exp.Neg, self._literal),
            (exp.And | exp.Or | exp.Not | exp.Is | exp.In | exp.Between, self._condition),
            (tuple(_COMPARISONS), self._comparison),
            (exp.Coalesce | exp.Case | exp.If, self._choice),
            (exp.TimestampTrunc | exp.Cast | exp.TsOrDsToDate, self._converted),
        ):
            if isinstance(plain, kinds):
                return render(plain)
        raise UnsupportedSqlError("Spark and DuckDB may evaluate it differently", plain)

    def _literal(self, literal: exp.Expression) -> tuple[str, Kind | None]:
        if isinstance(literal, exp.Boolean):
            return ("true" if literal.this else "false"), "boolean"
        if isinstance(literal, exp.Neg):
            sql, kind = self.row(literal.this)
            if kind in NUMBERS:
                return f"(-{sql})", kind
        elif literal.is_string:
            quoted = str(literal.this).replace("'", "''")
            return f"'{quoted}'", "text"
        elif str(literal.this).isdigit():
            return str(literal.this), "integer"
        raise UnsupportedSqlError("its type differs between Spark and DuckDB", literal)

    def _condition(self, condition: exp.Expression) -> tuple[str, Kind | None]:
        if isinstance(condition, exp.Not):
            return f"(NOT {self.boolean(condition.this)})", "boolean"
        if isinstance(condition, exp.And | exp.Or):
            word = "AND" if isinstance(condition, exp.And) else "OR"
            return f"({self.boolean(condition.this)} {word} {self.boolean(condition.expression)})", "boolean"
        if isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null):
            return f"({self.row(condition.this)[0]} IS NULL)", "boolean"
        if isinstance(condition, exp.In) and condition.expressions:
            operands = self.alike(condition, condition.this, *condition.expressions)
            return f"({operands[0]} IN ({', '.join(operands[1:])}))", "boolean"
        if isinstance(condition, exp.Between):
            value, low, high = self.alike(condition, condition.this, condition.args["low"], condition.args["high"])
            return f"({value} BETWEEN {low} AND {high})", "boolean"
        raise UnsupportedSqlError("Spark and DuckDB may evaluate it differently", condition)

    def _comparison(self, comparison: exp.Expression) -> tuple[str, Kind | None]:
        first, second = self.alike(comparison, comparison.this, comparison.expression)
        return f"({first} {_COMPARISONS[type(comparison)]} {second})", "boolean"

    def alike(self, operation: exp.Expression, *operands: exp.Expression) -> list[str]:
        """Returns the SQL of operands of one kind. Other comparisons convert one of them, each engine in its way."""
        read = [self.row(operand) for operand in operands]
        kinds = {"integer" if kind == "decimal" else kind for _, kind in read}
        if len(kinds) > 1 or kinds == {"float"}:
            raise UnsupportedSqlError("it compares values of different types", operation)
        return [sql for sql, _ in read]

    def _choice(self, choice: exp.Expression) -> tuple[str, Kind | None]:
        if isinstance(choice, exp.Coalesce):
            parts = [self.row(part) for part in (choice.this, *choice.expressions)]
            return f"coalesce({', '.join(sql for sql, _ in parts)})", self._one_kind(choice, parts)
        if isinstance(choice, exp.Case) and choice.this is not None:
            raise UnsupportedSqlError("CASE with an operand is not analysed; use CASE WHEN", choice)
        branches = list(_branches(choice))
        values = [self.row(value) for _, value in branches]
        default = choice.args.get("default") or choice.args.get("false")
        otherwise = [] if default is None or isinstance(default, exp.Null) else [self.row(default)]
        written = " ".join(
            f"WHEN {self.boolean(condition)} THEN {sql}"
            for (condition, _), (sql, _) in zip(branches, values, strict=True)
        )
        last = f" ELSE {otherwise[0][0]}" if otherwise else ""
        return f"(CASE {written}{last} END)", self._one_kind(choice, [*values, *otherwise])

    def _one_kind(self, operation: exp.Expression, parts: Sequence[tuple[str, Kind | None]]) -> Kind | None:
        kinds = {kind for _, kind in parts}
        if len(kinds) != 1:
            raise UnsupportedSqlError("its results have different types", operation)
        return kinds.pop()

    def _converted(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        sql, kind = self.row(expression.this)
        if isinstance(expression, exp.Cast) and (number := converted_number(sql, kind, expression.to)) is not None:
            return number
        if isinstance(expression, exp.TimestampTrunc):
            unit = str(expression.args["unit"].name).upper()
            if kind == "time" and unit in _TRUNCATED_TO:
                return f"date_trunc('{unit.lower()}', {sql})", "time"
            raise UnsupportedSqlError(f"it truncates to {unit}", expression)
        to_date = isinstance(expression, exp.TsOrDsToDate) or expression.args["to"].is_type("date")
        if to_date and kind in ("time", "date") and not expression.args.get("format"):
            return f"CAST({sql} AS DATE)", "date"
        raise UnsupportedSqlError("Spark and DuckDB may convert it differently", expression)


def converted_number(sql: str, kind: Kind | None, target: exp.DataType) -> tuple[str, Kind] | None:
    """Returns the SQL and the kind of a number as another type; None if the engines may convert it differently.

    A decimal number becomes an integer by truncation in Spark, and by rounding in DuckDB.
    """
    if target.is_type("decimal") and target.expressions and kind in NUMBERS:
        return f"CAST({sql} AS DECIMAL({', '.join(part.name for part in target.expressions)}))", "decimal"
    return (f"CAST({sql} AS BIGINT)", "integer") if target.is_type("bigint") and kind == "integer" else None


def quoted_name(name: str) -> str:
    """Returns a column's name in DuckDB's quotes."""
    return '"' + name.replace('"', '""') + '"'


def _branches(choice: exp.Expression) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    """Yields condition and value of each branch of CASE or IF."""
    for branch in choice.args["ifs"] if isinstance(choice, exp.Case) else [choice]:
        yield branch.this, branch.args["true"]


#: Clauses of an allowed SELECT.
_CLAUSES: Final = frozenset({"expressions", "from_", "joins", "where", "group", "distinct", "with_"})
_JOINS: Final = {("", ""): "JOIN", ("", "INNER"): "JOIN", ("LEFT", ""): "LEFT JOIN", ("LEFT", "OUTER"): "LEFT JOIN"}
_ARITHMETIC: Final[dict[type[exp.Expression], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
#: Characters with a meaning in a LIKE pattern.
_WILDCARDS: Final = frozenset("%_")


@dataclass(frozen=True, slots=True)
class PortableQuery:
    """A query in DuckDB's dialect, with the SQL that it was rendered from, as it was parsed."""

    sql: str
    tree: exp.Query


def portable_query(sql: str, inputs: Mapping[str, Mapping[str, str]]) -> PortableQuery:
    """Returns the query for DuckDB. Its columns have Spark's types, except that timestamps are in UTC without zone, and
    sums of decimals have 38 digits.

    Args:
        inputs: the columns of each input with their types, by the name of its view. Timestamps have a zone.

    Raises:
        UnsupportedSqlError: the engines may answer differently; with the reason.
    """
    try:
        tree = parse_spark(sql)
    except SqlglotError as error:
        raise UnsupportedSqlError(f"its SQL cannot be analysed: {str(error).splitlines()[0]}") from error
    relations = {name.lower(): _input_relation(name, types) for name, types in inputs.items()}
    select = _Select(tree, relations)
    return PortableQuery(select.read().sql, select.tree)


@dataclass(frozen=True, slots=True)
class _Relation:
    """Rows with named columns; values of kind None cannot be used. The columns `key` together identify a row."""

    sql: str
    columns: Mapping[str, Kind | None]
    key: frozenset[str] = frozenset()


def _input_relation(name: str, types: Mapping[str, str]) -> _Relation:
    """Returns an input whose timestamps are in UTC without zone, so no setting of a session changes their dates."""
    kinds = {column: kind_of(declared) for column, declared in types.items()}
    columns = (
        f"make_timestamp(epoch_us({quoted_name(column)})) AS {quoted_name(column)}"
        if kind == "time"
        else quoted_name(column)
        for column, kind in kinds.items()
        if kind is not None
    )
    return _Relation(f"(SELECT {', '.join(columns)} FROM {quoted_name(name)})", kinds)


@dataclass(frozen=True, slots=True)
class _Source:
    """A relation in FROM, under a name that no column or table has."""

    name: str
    relation: _Relation


class _Select(RowReader):
    """Reads one SELECT, and those within it."""

    def __init__(self, select: exp.Expr, relations: Mapping[str, _Relation]) -> None:
        if not isinstance(select, exp.Select):
            raise UnsupportedSqlError("it is no single SELECT")
        extra = next((name for name, value in select.args.items() if value and name not in _CLAUSES), None)
        if extra is not None:
            raise UnsupportedSqlError(f"it has {extra.strip('_').upper()}")
        self.tree = self._select = select
        self._relations = dict(relations)
        self._sources: dict[str, _Source] = {}
        self._groups: list[exp.Expression] | None = None
        self._in_aggregate = False

    def read(self) -> _Relation:
        """Returns the rows of the SELECT, with its SQL as that of the relation."""
        ctes, source = self._read_ctes(), self._read_from()
        where = self._select.args.get("where")
        condition = "" if where is None else f" WHERE {self.boolean(where.this)}"
        grouping = self._read_groups()
        outputs = [(self._name_of(projection), *self._output(projection)) for projection in self._select.expressions]
        columns: dict[str, Kind | None] = {name: kind for name, _, kind in outputs}
        if len(columns) != len(outputs):
            raise UnsupportedSqlError("two of its columns have one name")
        selected = ", ".join(f"{sql} AS {quoted_name(name)}" for name, sql, _ in outputs)
        distinct = self._read_distinct(columns)
        sql = f"{ctes}SELECT {distinct}{selected} FROM {source}{condition}{grouping}"
        return _Relation(sql, columns, frozenset(columns) if distinct else self._group_columns())

    # Clauses.

    def _read_ctes(self) -> str:
        clause = self._select.args.get("with_")
        if clause is None:
            return ""
        if clause.args.get("recursive"):
            raise UnsupportedSqlError("it has a recursive CTE", clause)
        texts = []
        for number, cte in enumerate(clause.expressions):
            if cte.args["alias"].args.get("columns"):
                raise UnsupportedSqlError("a CTE renames its columns", cte)
            answer = _Select(cte.this, self._relations).read()
            name = quoted_name(f"_{number}_{cte.alias}")
            texts.append(f"{name} AS ({answer.sql})")
            self._relations[cte.alias.lower()] = _Relation(name, answer.columns, answer.key)
        return f"WITH {', '.join(texts)} "

    def _read_from(self) -> str:
        clause = self._select.args.get("from_")
        if clause is None:
            raise UnsupportedSqlError("it reads no table")
        text = self._read_source(clause.this)
        for join in self._select.args.get("joins") or ():
            sides = (str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper())
            extra = {name for name, value in join.args.items() if value} - {"this", "side", "kind", "on"}
            if extra or sides not in _JOINS or join.args.get("on") is None:
                raise UnsupportedSqlError("it is no inner or left join with ON", join)
            text = f"{text} {_JOINS[sides]} {self._read_source(join.this)}"
            text = f"{text} ON {self.boolean(join.args['on'])}"
        return text

    def _read_source(self, node: exp.Expression) -> str:
        extra = {name for name, value in node.args.items() if value} - {"this", "alias"}
        alias = node.args.get("alias")
        if extra or (alias is not None and alias.args.get("columns")):
            raise UnsupportedSqlError("it reads a table with more than a name", node)
        if isinstance(node, exp.Subquery):
            answer = _Select(node.this, self._relations).read()
            relation = _Relation(f"({answer.sql})", answer.columns, answer.key)
        elif isinstance(node, exp.Table) and node.name.lower() in self._relations:
            relation = self._relations[node.name.lower()]
        else:
            raise UnsupportedSqlError("it is no input", node)
        name = node.alias_or_name.lower()
        if not name or name in self._sources:
            raise UnsupportedSqlError("it reads two tables under one name", node)
        self._sources[name] = _Source(quoted_name(f"_s{len(self._sources)}"), relation)
        return f"{relation.sql} AS {self._sources[name].name}"

    def _read_groups(self) -> str:
        clause = self._select.args.get("group")
        if clause is None:
            return ""
        if any(value for name, value in clause.args.items() if name not in ("expressions", "all")):
            raise UnsupportedSqlError("its GROUP BY has grouping sets", clause)
        expressions = clause.expressions
        if clause.args.get("all"):
            expressions = [
                projection for projection in self._select.expressions if projection.find(exp.AggFunc) is None
            ]
        groups: dict[str, exp.Expression] = {}
        for expression in expressions:
            resolved = self.plain(expression) if clause.args.get("all") else self._resolved_group(expression)
            if resolved.find(exp.Column) is None:
                raise UnsupportedSqlError("it groups by a constant", expression)
            groups[self._compared(resolved)] = resolved
        self._groups = list(groups.values())
        return f" GROUP BY {', '.join(groups)}"

    def _resolved_group(self, expression: exp.Expression) -> exp.Expression:
        """Returns what a position or an alias in GROUP BY stands for. A column of the inputs comes before an alias."""
        projections = self._select.expressions
        if isinstance(expression, exp.Literal):
            position = 0 if expression.is_string else int(expression.this)
            if not 1 <= position <= len(projections):
                raise UnsupportedSqlError("it groups by a constant", expression)
            return self.plain(projections[position - 1])
        # Spark finds columns in any case of letters.
        columns = {name.lower() for source in self._sources.values() for name in source.relation.columns}
        if isinstance(expression, exp.Column) and not expression.table and expression.name.lower() not in columns:
            for projection in projections:
                if projection.alias == expression.name:
                    return self.plain(projection)
        return self.plain(expression)

    def _read_distinct(self, columns: Mapping[str, Kind | None]) -> str:
        distinct = self._select.args.get("distinct")
        if not distinct:
            return ""
        if any(distinct.args.values()) or "float" in columns.values():
            raise UnsupportedSqlError("Spark and DuckDB may differ in what is distinct", distinct)
        return "DISTINCT "

    def _group_columns(self) -> frozenset[str]:
        """Returns the columns that identify a group; none if a group is not selected."""
        if self._groups is None:
            return frozenset()
        named = [(self.plain(projection), projection.alias_or_name) for projection in self._select.expressions]
        keys = [next((name for value, name in named if value == group), None) for group in self._groups]
        return frozenset() if None in keys else frozenset(name for name in keys if name is not None)

    # Columns.

    def _owners(self, name: str) -> list[str]:
        return [source for source, one in self._sources.items() if name in one.relation.columns]

    def name_alike(self, column: exp.Column) -> None:
        """Gives a column the name of the source that has it."""
        owners = [column.table.lower()] if column.table else self._owners(column.name)
        if len(owners) == 1:
            column.set("table", exp.to_identifier(owners[0]))

    def column(self, column: exp.Expression) -> tuple[str, Kind | None]:
        """Returns a column of one of the sources; see `RowReader`."""
        table = column.table.lower() if isinstance(column, exp.Column) else ""
        source = self._sources.get(table)
        if source is None or column.name not in source.relation.columns:
            raise UnsupportedSqlError("it is no column of one of its tables", column)
        if self._groups is not None and not self._in_aggregate:
            raise UnsupportedSqlError("it is neither a group nor in an aggregate", column)
        kind = source.relation.columns[column.name]
        if kind is None:
            raise UnsupportedSqlError("values of its type are not compared alike", column)
        return f"{source.name}.{quoted_name(column.name)}", kind

    def _name_of(self, projection: exp.Expression) -> str:
        if not projection.alias_or_name or projection.alias_or_name == "*":
            raise UnsupportedSqlError("a column has no name", projection)
        return projection.alias_or_name

    def _output(self, projection: exp.Expression) -> tuple[str, Kind | None]:
        plain = self.plain(projection)
        return (self._row_number(plain), "integer") if isinstance(plain, exp.Window) else self.row(plain)

    def _row_number(self, window: exp.Window) -> str:
        """Returns the number of a row in an order in which no two rows are equal, so that both engines agree."""
        order, partition = window.args.get("order"), window.args.get("partition_by") or []
        extra = {name for name, value in window.args.items() if value} - {"this", "partition_by", "order", "over"}
        if extra or not isinstance(window.this, exp.RowNumber) or order is None or self._groups is not None:
            raise UnsupportedSqlError("it is no row_number() over rows", window)
        ordered = [(self._ordered(term), self.plain(term.this)) for term in order.expressions]
        terms = [*partition, *(term for _, term in ordered)]
        used = {term.name for term in terms if isinstance(term, exp.Column)}
        sources = list(self._sources.values())
        if len(sources) != 1 or not sources[0].relation.key or not sources[0].relation.key <= used:
            raise UnsupportedSqlError("two rows may be equal in its order", window)
        partitions = [self._compared(term) for term in partition]
        by = f"PARTITION BY {', '.join(partitions)} " if partitions else ""
        return f"CAST(row_number() OVER ({by}ORDER BY {', '.join(text for text, _ in ordered)}) AS INTEGER)"

    def _ordered(self, ordered: exp.Expression) -> str:
        direction = "DESC" if ordered.args.get("desc") else "ASC"
        nulls = "FIRST" if ordered.args.get("nulls_first") else "LAST"
        return f"{self._compared(ordered.this)} {direction} NULLS {nulls}"

    def _compared(self, expression: exp.Expression) -> str:
        sql, kind = self.row(expression)
        if kind == "float":
            raise UnsupportedSqlError("it compares floating-point numbers", expression)
        return sql

    # Expressions.

    def row(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        """Returns DuckDB's SQL of an expression over a row or, with GROUP BY, over a group; and its kind."""
        plain = self.plain(expression)
        if self._groups is not None and not self._in_aggregate:
            if plain in self._groups:
                with self._over_rows():
                    return self.row(plain)
            if isinstance(plain, exp.AggFunc):
                with self._over_rows():
                    return self._aggregate(plain)
        if isinstance(plain, exp.DateDiff | exp.TsOrDsAdd):
            return self._date(plain)
        if isinstance(plain, tuple(_ARITHMETIC)):
            return self._arithmetic(plain)
        if isinstance(plain, exp.Like):
            return self._begins(plain)
        return super().row(plain)

    @contextmanager
    def _over_rows(self) -> Iterator[None]:
        self._in_aggregate = True
        try:
            yield
        finally:
            self._in_aggregate = False

    def _aggregate(self, function: exp.Expression) -> tuple[str, Kind | None]:
        argument = function.this
        if isinstance(function, exp.Count) and not function.args.get("expressions"):
            return self._count(argument), "integer"
        if isinstance(function, exp.CountIf):
            return f"count(*) FILTER (WHERE {self.boolean(argument)})", "integer"
        if isinstance(function, exp.Sum):
            sql, kind = self.row(argument)
            if kind in NUMBERS:
                # A sum of integers has 64 bits in Spark, and an overflow is an error there too.
                return (f"CAST(sum({sql}) AS BIGINT)" if kind == "integer" else f"sum({sql})"), kind
            raise UnsupportedSqlError("the sum of floating-point numbers depends on their order", function)
        if isinstance(function, exp.Min | exp.Max) and not function.args.get("expressions"):
            sql, kind = self.row(argument)
            if kind not in ("float", "boolean"):
                return f"{'min' if isinstance(function, exp.Min) else 'max'}({sql})", kind
        if isinstance(function, exp.LogicalAnd | exp.LogicalOr):
            name = "bool_and" if isinstance(function, exp.LogicalAnd) else "bool_or"
            return f"{name}({self.boolean(argument)})", "boolean"
        raise UnsupportedSqlError("Spark and DuckDB may evaluate it differently", function)

    def _count(self, argument: exp.Expression) -> str:
        if isinstance(argument, exp.Star):
            return "count(*)"
        if not isinstance(argument, exp.Distinct):
            return f"count({self.row(argument)[0]})"
        if len(argument.expressions) != 1:
            raise UnsupportedSqlError("it counts combinations of several expressions", argument)
        return f"count(DISTINCT {self._compared(argument.expressions[0])})"

    def _date(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        """Returns a difference of dates in days, or a date some days later."""
        unit = expression.args.get("unit")
        first, first_kind = self.row(expression.this)
        second, second_kind = self.row(expression.expression)
        if (unit is None or unit.name.upper() == "DAY") and first_kind == "date":
            if isinstance(expression, exp.DateDiff) and second_kind == "date":
                return f"CAST({first} - {second} AS INTEGER)", "integer"
            if isinstance(expression, exp.TsOrDsAdd) and second_kind == "integer":
                return f"({first} + CAST({second} AS INTEGER))", "date"
        raise UnsupportedSqlError("Spark and DuckDB may convert it differently", expression)

    def _arithmetic(self, expression: exp.Expression) -> tuple[str, Kind | None]:
        operands: Sequence[tuple[str, Kind | None]] = [self.row(expression.this), self.row(expression.expression)]
        if any(kind != "integer" for _, kind in operands):
            raise UnsupportedSqlError("only integers are computed alike", expression)
        return f"({operands[0][0]} {_ARITHMETIC[type(expression)]} {operands[1][0]})", "integer"

    def _begins(self, like: exp.Expression) -> tuple[str, Kind | None]:
        sql, kind = self.row(like.this)
        pattern = like.expression
        text = str(pattern.this) if isinstance(pattern, exp.Literal) and pattern.is_string else ""
        if kind != "text" or not text.endswith("%") or _WILDCARDS & set(text[:-1]):
            raise UnsupportedSqlError("only the start of a text is compared alike", like)
        return f"starts_with({sql}, {self.row(exp.Literal.string(text[:-1]))[0]})", "boolean"
