"""Translates the SQL of gold tables from Spark's dialect to DuckDB's, and says where the two differ.

sqlglot translates names and syntax. Where its translation gives other values than Spark, as for the number of a week's
day or a cast of text that is no number, the query is corrected first. What remains different, such as estimates, is
listed with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import duckdb
from sqlglot import exp
from sqlglot.errors import SqlglotError

from deltaworks.errors import ConfigError
from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.tables.view_translation import filled_template

_SPARK: Final = "spark"
_DUCKDB: Final = "duckdb"
_MAX_SHOWN: Final = 90
#: The default format of `unix_timestamp`, as sqlglot reads it.
_DEFAULT_FORMAT: Final = "%Y-%mstrict-%dstrict %Hstrict:%Mstrict:%Sstrict"
#: The function that DuckDB does not know, in its message.
_UNKNOWN_FUNCTION: Final = re.compile(r"Function with name \"?(\w+)\"? does not exist", re.IGNORECASE)
#: Messages about constructs that the two dialects have in different forms.
_UNTRANSLATED: Final = re.compile(
    r"No function matches|invalid perl operator|invalid escape sequence|not supported", re.I
)
_INTEGERS: Final = frozenset({exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT})
#: Expressions that are integers, so that a cast has nothing to round.
_INTEGRAL: Final = (
    *(exp.Floor, exp.Ceil, exp.Round, exp.Count, exp.CountIf, exp.Length, exp.Extract, exp.DateDiff, exp.IntDiv),
    *(exp.Hour, exp.Minute, exp.Day, exp.Month, exp.Year, exp.RowNumber, exp.RegexpExtract, exp.Substring),
)
_UNITS: Final = {"MM": "MONTH", "MON": "MONTH", "YY": "YEAR", "YYYY": "YEAR", "DD": "DAY"}
#: Syntax rather than functions.
_SYNTAX: Final = (exp.Cast, exp.TsOrDsToDate, exp.Case, exp.If, exp.Connector)
#: What DuckDB computes differently, by the kind of expression.
_NOTES: Final[dict[type[exp.Expr], str]] = {
    exp.ApproxDistinct: "both engines estimate, with different errors",
    exp.ApproxQuantile: "both engines estimate, with different errors",
    exp.First: "depends on the order of rows, which neither engine fixes",
    exp.Last: "depends on the order of rows, which neither engine fixes",
    exp.AnyValue: "depends on the order of rows, which neither engine fixes",
    exp.ArrayAgg: "the order of items depends on the order of rows, which neither engine fixes",
}
_ROUNDS: Final = "Spark truncates fractions, DuckDB rounds them; use floor() to have one answer"
_DIVIDES: Final = "by zero, Spark fails and DuckDB gives infinity; divide by nullif(…, 0)"


@dataclass(frozen=True, slots=True)
class Difference:
    """An expression that DuckDB spells or computes in another way.

    Args:
        line: in the Spark SQL, from 1.
        note: what differs in the result; empty if the answers are equal.
    """

    line: int
    spark: str
    duckdb: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Translation:
    """A query in DuckDB's dialect, and its differences in the order of lines. `source` names the file in errors."""

    sql: str
    differences: tuple[Difference, ...]
    query: exp.Query
    source: str

    def error(self, error: duckdb.Error) -> ConfigError:
        """Returns the error of a query that DuckDB rejects.

        It is GOLD_SQL_NOT_TRANSLATABLE with the construct and its line in the Spark SQL, or GOLD_SQL_INVALID for
        another failure, such as a value that does not fit.
        """
        text = " ".join(str(error).partition("\n\n")[0].split())
        unknown = _UNKNOWN_FUNCTION.search(text)
        name = unknown[1].lower() if unknown else ""
        calls = [call for call in self.query.find_all(exp.Func) if name and _head(call, _DUCKDB) == name]
        if calls:
            shown = _head(calls[0], _SPARK).replace("time_window", "window")
            text = f"DuckDB has no {shown}(), in: {_shorten(calls[0].sql(_SPARK))}"
            return ConfigError("GOLD_SQL_NOT_TRANSLATABLE", f"{self.source}:{_line_of(calls[0])}: {text}")
        is_syntax = isinstance(error, duckdb.ParserException) or _UNTRANSLATED.search(text) is not None
        return ConfigError(
            "GOLD_SQL_NOT_TRANSLATABLE" if is_syntax or unknown else "GOLD_SQL_INVALID", f"{self.source}: {text}"
        )


def translate(sql: str, *, source: str = "the query") -> Translation:
    """Translates one query.

    Args:
        source: the file, for messages.

    Raises:
        ConfigError: GOLD_SQL_INVALID, it is not one query in Spark's dialect.
    """
    try:
        query = parse_query(sql)
    except SqlglotError as error:
        details: dict[str, Any] = next(iter(getattr(error, "errors", [])), {})
        line = f":{details['line']}" if details.get("line") else ""
        text = str(details.get("description") or str(error).splitlines()[0]).rstrip(".")
        raise ConfigError("GOLD_SQL_INVALID", f"{source}{line}: {text}.") from error
    if query is None:
        raise ConfigError("GOLD_SQL_INVALID", f"{source}: it is not exactly one SELECT.")
    differences = sorted(dict.fromkeys(_differences(query)), key=lambda difference: difference.line)
    return Translation(_in_duckdb(query), tuple(differences), query, source)


def _in_duckdb(node: exp.Expr) -> str:
    """Returns an expression in DuckDB's dialect, with its inner expressions corrected before the outer ones."""
    root = exp.paren(node)
    for part in reversed(list(root.this.walk())):
        correction = _CORRECTIONS.get(type(part))
        if correction is not None:
            part.replace(correction(part.copy()))
    return str(root.this.sql(_DUCKDB))


def _day_of_week(node: exp.Expr) -> exp.Expr:
    return _duckdb("ISODOW(CAST({} AS DATE)) % 7 + 1", node.this.unnest())


def _truncated_date(node: exp.Expr) -> exp.Expr:
    """DuckDB adds to a date and truncates it as a timestamp. Spark's functions return dates."""
    if isinstance(node, exp.DateTrunc):
        node = _long_unit(node)
    return exp.cast(node, exp.DType.DATE)


def _long_unit(node: exp.Expr) -> exp.Expr:
    """DuckDB has no abbreviations of units."""
    unit = node.args["unit"]
    if (name := _UNITS.get(unit.name.upper())) is not None:
        node.set("unit", type(unit)(this=name, **({"is_string": True} if isinstance(unit, exp.Literal) else {})))
    return node


def _unix_timestamp(node: exp.Expr) -> exp.Expr:
    if node.args.get("format") is None or node.args["format"].name != _DEFAULT_FORMAT:
        return node
    return _duckdb("CAST(FLOOR(EPOCH(CAST({} AS TIMESTAMPTZ))) AS BIGINT)", node.this)


def _complete_units(node: exp.Expr) -> exp.Expr:
    """Spark counts complete units between two times, DuckDB's DATE_DIFF the boundaries between them."""
    unit = node.args.get("unit")
    if unit is None:
        return node
    times = (side.this if isinstance(side, exp.TsOrDsToDate) else side for side in (node.expression, node.this))
    template = f"DATE_SUB('{unit.name}', CAST({{}} AS TIMESTAMPTZ), CAST({{}} AS TIMESTAMPTZ))"
    return _duckdb(template, *times)


def _interpolated(node: exp.Expr) -> exp.Expr:
    return exp.PercentileCont(this=node.this, expression=node.args["quantile"])


def _strict_cast(node: exp.Expr) -> exp.Expr:
    """Spark fails for a text that is no number, as its ANSI mode is on."""
    return exp.Cast(this=node.this, to=node.args["to"])


def _logarithm(node: exp.Expr) -> exp.Expr:
    """Spark gives null for zero and less."""
    key = "expression" if isinstance(node, exp.Log) else "this"
    node.set(key, _duckdb("NULLIF(GREATEST({}, 0), 0)", node.args[key]))
    return node


def _rounded_to_integer(node: exp.Expr) -> exp.Expr:
    if node.args.get("decimals") is not None:
        return node
    return exp.TryCast(this=node, to=exp.DataType.build("BIGINT"))


def _first_character(node: exp.Expr) -> exp.Expr:
    """The first character has the number 1; Spark accepts 0 for it."""
    if node.args.get("start") is None or node.args["start"].name != "0":
        return node
    node.set("start", exp.Literal.number(1))
    return node


def _true_count(node: exp.Expr) -> exp.Expr:
    """DuckDB's count_if gives null, and not 0, if no condition is true or false."""
    return exp.Count(this=exp.Case().when(node.this, exp.Literal.number(1)))


def _anonymous(node: exp.Expr) -> exp.Expr:
    template = _FUNCTIONS.get((node.name.lower(), len(node.expressions)))
    return node if template is None else _duckdb(template, *node.expressions)


def _duckdb(template: str, *arguments: exp.Expr) -> exp.Expr:
    return filled_template(template, *arguments, dialect=_DUCKDB)


_CORRECTIONS: Final[dict[type[exp.Expr], Callable[[exp.Expr], exp.Expr]]] = {
    exp.DayOfWeek: _day_of_week,
    exp.TsOrDsAdd: _truncated_date,
    exp.AddMonths: _truncated_date,
    exp.DateTrunc: _truncated_date,
    exp.TimestampTrunc: _long_unit,
    exp.StrToUnix: _unix_timestamp,
    exp.TimestampDiff: _complete_units,
    exp.DateDiff: _complete_units,
    exp.Quantile: _interpolated,
    exp.TryCast: _strict_cast,
    exp.Log: _logarithm,
    exp.Ln: _logarithm,
    exp.Floor: _rounded_to_integer,
    exp.Ceil: _rounded_to_integer,
    exp.Substring: _first_character,
    exp.CountIf: _true_count,
    exp.Anonymous: _anonymous,
}
#: Functions of Spark that sqlglot does not know, by name and number of arguments.
_FUNCTIONS: Final = {
    ("weekday", 1): "ISODOW(CAST({} AS DATE)) - 1",
    ("pmod", 2): "(({0} % {1}) + {1}) % {1}",
    ("bround", 1): "ROUND_EVEN({}, 0)",
    ("bround", 2): "ROUND_EVEN({}, {})",
}


def _differences(query: exp.Query) -> Iterator[Difference]:
    """Yields expressions with another result, and functions with another name."""
    for node in query.walk():
        note = _note(node)
        renamed = isinstance(node, exp.Func) and _head(node, _SPARK) != _head(node, _DUCKDB)
        if note or (renamed and not isinstance(node, _SYNTAX)):
            yield Difference(_line_of(node), _shorten(node.sql(_SPARK)), _shorten(_in_duckdb(node)), note)


def _note(node: exp.Expr) -> str:
    if isinstance(node, exp.Cast) and node.to.this in _INTEGERS:
        inner = node.this.unnest()
        return "" if isinstance(inner, (*_INTEGRAL, exp.Literal)) else _ROUNDS
    if isinstance(node, exp.Div):
        divisor = node.expression.unnest()
        return "" if isinstance(divisor, (exp.Nullif, exp.Literal)) else _DIVIDES
    return _NOTES.get(type(node), "")


def _head(node: exp.Expr, dialect: str) -> str:
    """Returns the name of a call in a dialect in lower case; what it begins with if it is no call."""
    return node.sql(dialect).partition("(")[0].strip().lower()


def _line_of(node: exp.Expr) -> int:
    """Returns the first line of an expression: of the names in it, or else of what surrounds it."""
    at: exp.Expr | None = node
    while at is not None:
        lines = [int(part.meta["line"]) for part in at.walk() if part.meta.get("line")]
        if lines:
            return min(lines)
        at = at.parent
    return 1


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 1]}…"
