"""Translates a declared view from DuckDB's dialect to Spark's, if both give the same rows.

Only constructs with equal values in both engines are translated; sqlglot writes them, and what it leaves different is
corrected first. A view with any other construct is rejected with its name: a query by the same name never has another
answer on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sqlglot import exp, parse
from sqlglot.errors import ErrorLevel, SqlglotError

_SPARK: Final = "spark"
_DUCKDB: Final = "duckdb"
_MAX_SHOWN: Final = 60
#: Queries, names and literals.
_SYNTAX: Final = (
    *(exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset),
    *(exp.With, exp.CTE, exp.Union, exp.Subquery, exp.Alias, exp.TableAlias, exp.Table, exp.Column, exp.Identifier),
    *(exp.Star, exp.Literal, exp.Null, exp.Boolean, exp.Paren, exp.Distinct, exp.Filter, exp.IgnoreNulls, exp.Qualify),
    *(exp.Join, exp.Window, exp.WindowSpec, exp.DataType, exp.DataTypeParam, exp.Interval, exp.Var, exp.Tuple),
)
#: Operators and functions that give the same values in both engines, after the corrections.
_FUNCTIONS: Final = (
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between),
    *(exp.Like, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Pow),
    *(exp.Cast, exp.Extract, exp.TimestampTrunc, exp.DateBin, exp.Count, exp.CountIf, exp.Sum, exp.Min, exp.Max),
    *(exp.Avg, exp.Median, exp.PercentileCont, exp.AnyValue, exp.RowNumber, exp.Rank, exp.Lag, exp.Lead, exp.Least),
    *(exp.Greatest, exp.Lower, exp.Upper, exp.Exists, exp.CurrentTimestamp),
)
_SAME: Final = frozenset((*_SYNTAX, *_FUNCTIONS))
_INTEGERS: Final = frozenset({exp.DType.INT, exp.DType.BIGINT})
_CASTS: Final = frozenset({*_INTEGERS, exp.DType.DOUBLE, exp.DType.DATE})
_EXTRACTED: Final = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE"})
_TRUNCATED: Final = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"})
#: Units of a bucket of one unit whose start is a truncated time.
_BUCKETS: Final = frozenset({"DAY", "HOUR", "MINUTE", "SECOND"})


class UntranslatableViewError(Exception):
    """A view with a construct that Spark lacks or answers in another way; the message names it."""


def view_in_spark(sql: str) -> str:
    """Returns one SELECT of DuckDB's dialect in Spark's. Results are cached by the text.

    Raises:
        UntranslatableViewError: it is not one SELECT, or has a construct without an equal one in Spark.
    """
    translated, reason = _cached(sql)
    if reason:
        raise UntranslatableViewError(reason)
    return translated


@lru_cache(maxsize=512)
def _cached(sql: str) -> tuple[str, str]:
    """Returns the translated text, or why there is none."""
    try:
        return _translate(sql), ""
    except UntranslatableViewError as error:
        return "", str(error)
    except SqlglotError as error:
        return "", str(error).splitlines()[0]


def _translate(sql: str) -> str:
    statements = parse(sql, dialect=_DUCKDB)
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UntranslatableViewError("it is not exactly one SELECT")
    root = exp.paren(statements[0])
    for node in root.this.walk():
        _check(node)
    for node in reversed(list(root.this.walk())):
        correction = _CORRECTIONS.get(type(node))
        if correction is not None:
            node.replace(correction(node.copy()))
    return str(root.this.sql(_SPARK, comments=False, unsupported_level=ErrorLevel.RAISE))


def _check(node: exp.Expr) -> None:
    """Rejects a construct that has no equal one.

    Raises:
        UntranslatableViewError: with the construct as it is written in DuckDB.
    """
    check: Callable[[exp.Expr], bool] | None = _CHECKS.get(type(node))
    is_now = isinstance(node, exp.Anonymous) and node.name.lower() == "now"
    if is_now or (type(node) in _SAME and (check is None or check(node))):
        return
    shown = " ".join(node.sql(_DUCKDB).split())
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 1]}…"
    raise UntranslatableViewError(f"Spark has no equal of {shown}")


def _unit(node: exp.Expr) -> str:
    unit = node.args.get("unit")
    return "" if unit is None else unit.name.upper().removesuffix("S")


def _lacks(*names: str) -> Callable[[exp.Expr], bool]:
    """Returns a check that a construct has none of these parts."""
    return lambda node: not any(node.args.get(name) for name in names)


def _is_same_cast(node: exp.Expr) -> bool:
    """Decimals are rounded like DuckDB's only if the value is known to be a double, as that of a division is."""
    kind, value = node.args["to"].this, node.this.unnest()
    return isinstance(value, exp.Div) if kind == exp.DType.DECIMAL else kind in _CASTS


def _is_plain_pattern(node: exp.Expr) -> bool:
    """A backslash escapes in Spark only."""
    pattern = node.args["expression"]
    return isinstance(pattern, exp.Literal) and "\\" not in pattern.name


def _is_truncated_bucket(node: exp.Expr) -> bool:
    width = node.this
    is_one = isinstance(width, exp.Interval) and width.this is not None and width.this.name == "1"
    return is_one and _unit(width) in _BUCKETS and set(filter(node.args.get, node.args)) == {"this", "expression"}


_CHECKS: Final[dict[type[exp.Expr], Callable[[exp.Expr], bool]]] = {
    exp.Join: _lacks("method"),
    exp.Star: _lacks("except_", "replace", "rename"),
    exp.Distinct: _lacks("on"),
    exp.Union: _lacks("by_name"),
    exp.With: _lacks("recursive"),
    exp.WindowSpec: _lacks("exclude"),
    exp.Cast: _is_same_cast,
    exp.Like: _is_plain_pattern,
    exp.DateBin: _is_truncated_bucket,
    exp.Extract: lambda node: node.this.name.upper() in _EXTRACTED,
    exp.TimestampTrunc: lambda node: _unit(node) in _TRUNCATED,
    # Spark filters no aggregate of a window.
    exp.Window: lambda node: not isinstance(node.this, exp.Filter),
}


def _division(node: exp.Expr) -> exp.Expr:
    """DuckDB divides doubles, of decimals too, and by zero it gives infinity or no number, where Spark fails."""
    divisor = node.args["expression"].unnest()
    is_nonzero = isinstance(divisor, exp.Nullif) or (isinstance(divisor, exp.Literal) and float(divisor.name) != 0)
    template = "CAST({0} AS DOUBLE) / CAST({1} AS DOUBLE)"
    if not is_nonzero:
        by_zero = "CAST({0} AS DOUBLE) * POWER(CAST({1} AS DOUBLE), -1)"
        template = f"CASE WHEN CAST({{1}} AS DOUBLE) = 0 THEN {by_zero} ELSE {template} END"
    return _spark(template, node.this, node.args["expression"])


def _count_if(node: exp.Expr) -> exp.Expr:
    """DuckDB gives null if no condition is true or false."""
    return _spark("SUM(CASE WHEN {0} THEN 1 WHEN NOT {0} THEN 0 END)", node.this)


def _average(node: exp.Expr) -> exp.Expr:
    """DuckDB's average of decimals is a double."""
    return _spark("AVG(CAST({0} AS DOUBLE))", node.this)


def _cast(node: exp.Expr) -> exp.Expr:
    """Spark truncates to an integer, DuckDB rounds halves, of doubles to even; to a decimal Spark rounds the shown
    digits, DuckDB the value. Texts, of which both read other forms, fail.
    """
    kind = node.args["to"]
    if kind.this in _INTEGERS:
        rounded = (
            "CASE WHEN TYPEOF({0}) = 'string' THEN RAISE_ERROR('a cast of a text to an integer') "
            "WHEN TYPEOF({0}) LIKE 'decimal%' THEN ROUND({0}, 0) ELSE BROUND({0}, 0) END"
        )
        return exp.cast(_spark(rounded, node.this), kind)
    if kind.this != exp.DType.DECIMAL:
        return node
    scale = int(kind.expressions[1].name) if len(kind.expressions) > 1 else (0 if kind.expressions else 3)
    factor = f"1{'0' * scale}D"
    return exp.cast(_spark(f"ROUND({{0}} * {factor}, 0) / {factor}", node.this), kind)


def _spark(template: str, *arguments: exp.Expr) -> exp.Expr:
    return filled_template(template, *arguments, dialect=_SPARK)


def filled_template(template: str, *arguments: exp.Expr, dialect: str) -> exp.Expr:
    """Returns an expression of a dialect with these arguments, in the order of `{}` or by number.

    Each is in parentheses, because the operators around it may bind more closely than its own.
    """
    names = [f"argument_{number}" for number in range(len(arguments))]
    built: exp.Expr = exp.maybe_parse(f"SELECT {template.format(*names)}", dialect=dialect).expressions[0]
    by_name = dict(zip(names, arguments, strict=True))

    def place(node: exp.Expr) -> exp.Expr:
        is_argument = isinstance(node, exp.Column) and node.name in by_name
        return exp.paren(by_name[node.name]) if is_argument else node

    return exp.paren(built.transform(place), copy=False)


def _percentile(node: exp.Expr) -> exp.Expr:
    return exp.func("PERCENTILE", node.this, node.args["expression"])


def _bucket(node: exp.Expr) -> exp.Expr:
    return exp.TimestampTrunc(this=node.args["expression"], unit=exp.var(_unit(node.this)))


_CORRECTIONS: Final[dict[type[exp.Expr], Callable[[exp.Expr], exp.Expr]]] = {
    exp.Div: _division,
    exp.CountIf: _count_if,
    exp.Avg: _average,
    exp.Cast: _cast,
    exp.PercentileCont: _percentile,
    exp.DateBin: _bucket,
}
