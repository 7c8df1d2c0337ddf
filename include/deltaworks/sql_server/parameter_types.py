"""Infers the types of a prepared statement's parameters from their surroundings.

DuckDB knows them only with values, but clients such as JDBC drivers convert their values to the types that the server
states. The SQL parser is loaded with the first statement that has parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import duckdb

#: Type of a parameter whose surroundings say nothing.
DEFAULT_TYPE: Final = "VARCHAR"
_COUNT_TYPE: Final = "BIGINT"
_PARAMETER: Final = re.compile(rb"(?:\?|\$)(\d*)")
_CALL: Final = "deltaworks_parameter"


def parameter_types(text: str, count: int, columns: Mapping[tuple[str, str], Mapping[str, str]]) -> list[str]:
    """Returns DuckDB's type of each parameter, in order; empty where the surroundings say nothing.

    Args:
        text: a valid SELECT.
        count: number of its parameters.
        columns: types of columns by name, of each table that it reads, by schema and name.
    """
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify

    schema: dict[str, Any] = {}
    for (pipeline, name), kinds in columns.items():
        schema.setdefault(pipeline, {})[name] = dict(kinds)
    types = [""] * count
    try:
        tree = parse_one(name_parameters(text), dialect="duckdb")
        for table in tree.find_all(exp.Table):
            table.set("catalog", None)
        tree = qualify(tree, dialect="duckdb", schema=schema, validate_qualify_columns=False)
        tree = annotate_types(tree, schema=schema, dialect="duckdb")
        for parameter in filter(_is_parameter, tree.find_all(exp.Anonymous)):
            number = int(parameter.expressions[0].name)
            kind = _surrounding_type(parameter)
            if kind and 1 <= number <= count:
                types[number - 1] = kind
    except (SqlglotError, ValueError, RecursionError):
        # The statement is valid for DuckDB, which takes the types of the values.
        return [""] * count
    return types


def name_parameters(text: str) -> str:
    """Replaces each `?`, and each `$1`, by a call with the parameter's number, which the SQL parser leaves alone.

    Texts, names and comments stay.
    """
    data, number = text.encode(), 0
    parts, end = list[bytes](), 0
    for at, kind in duckdb.tokenize(text):
        mark = _PARAMETER.match(data, at) if kind == duckdb.token_type.operator else None
        if mark is None:
            continue
        number += 1
        parts += [data[end:at], f"{_CALL}({mark[1].decode() or number})".encode()]
        end = mark.end()
    return b"".join([*parts, data[end:]]).decode()


def _is_parameter(node: object) -> bool:
    return str(getattr(node, "this", "")).lower() == _CALL


def _surrounding_type(parameter: object) -> str:
    """Returns the type that the parent of a parameter expects; empty if it expects none."""
    from sqlglot import exp

    node = parameter
    assert isinstance(node, exp.Expression)
    while isinstance(node.parent, exp.Paren | exp.Neg):
        node = node.parent
    parent = node.parent
    if isinstance(parent, exp.Cast):
        return parent.to.sql(dialect="duckdb") if node is parent.this else ""
    if isinstance(parent, exp.Limit | exp.Offset):
        return _COUNT_TYPE
    if isinstance(parent, exp.Like | exp.ILike | exp.DPipe):
        return DEFAULT_TYPE
    if isinstance(parent, exp.Predicate | exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod | exp.Coalesce):
        others = [part for part in parent.iter_expressions() if part is not node]
        return next((text for part in others if (text := _type_text(part))), "")
    return ""


def _type_text(node: object) -> str:
    from sqlglot import exp

    assert isinstance(node, exp.Expression)
    kind = node.type
    unknown = (exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL, exp.DataType.Type.INTERVAL)
    if kind is None or kind.this in unknown or _is_parameter(node):
        return ""
    return kind.sql(dialect="duckdb")
