"""Expressions over a row that Spark and DuckDB evaluate alike, rendered in DuckDB's dialect.

It is a list of what is allowed: columns, literals, conditions, comparisons of values of one type, choices, and parts of
times and dates. Every other expression is refused with its place in the SQL: floating-point arithmetic, functions of
text, conversions. The SQL is rendered here and not by a translator, so nothing else reaches DuckDB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import sqlglot
from sqlglot import exp

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
