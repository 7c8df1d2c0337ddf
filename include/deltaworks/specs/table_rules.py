"""Rules of a table: SQL conditions on each row, validated against the column types when the spec is read.

A row passes a rule unless it is false; like SQL's CHECK, null passes. The dialect is DuckDB's. An expression can only
use the row's columns: no other table, aggregate, clock or random function.

Valid rules are cached: DuckDB's import would double the time of each DAG parse and each command.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import StringConstraints

from deltaworks.specs.base import Name, Spec
from deltaworks.specs.result_cache import ResultCache, cache_folder, code_digest
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, parse_type

if TYPE_CHECKING:
    import duckdb

_DUCKDB_NAMES = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "binary": "BLOB",
}
_UNKNOWN_COLUMN = re.compile(r'[Cc]olumn(?: named)? "([^"]+)"')
#: Clock functions that SQL writes without parentheses.
_CLOCK_FUNCTIONS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
#: DuckDB settings without access to files, network or downloaded extensions.
_SANDBOX_CONFIG = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
#: Maximum number of cached rules, more than a project has.
MAX_CACHED_RULES = 2_000
#: The code that decides, together with DuckDB, whether a rule is valid.
_CODE_FILES = (Path(__file__), Path(__file__).with_name("types.py"))


class TableRuleSpec(Spec):
    """A condition on each row, and what happens to rows for which it is false."""

    name: Name
    check: Annotated[str, StringConstraints(min_length=1)]
    on_fail: Literal["warn", "quarantine", "fail"] = "quarantine"


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Opens an isolated in-memory DuckDB: one thread, UTC, no files and no network."""
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(_SANDBOX_CONFIG))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def duckdb_type(kind: ColumnType) -> str:
    """Returns the DuckDB name of a type."""
    match kind:
        case Primitive(name):
            return _DUCKDB_NAMES[name]
        case Decimal(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case Array(element):
            return f"{duckdb_type(element)}[]"
        case Map(value):
            return f"MAP(VARCHAR, {duckdb_type(value)})"
        case _:
            fields = ", ".join(f'"{name}" {duckdb_type(field)}' for name, field in kind.fields)
            return f"STRUCT({fields})"


def select_item(check: str) -> str:
    """Returns a rule as an item of a SELECT list. Line breaks end a trailing comment, which would hide the SQL after
    it.
    """
    return f"(\n{check}\n)"


def table_rule_problem(check: str, columns: Mapping[str, str]) -> str | None:
    """Returns the error of a rule over columns with these types; None if it is valid."""
    return _cached_problem(check, tuple(columns.items()))


@functools.lru_cache(maxsize=1024)
def _cached_problem(check: str, columns: tuple[tuple[str, str], ...]) -> str | None:
    code = code_digest(("duckdb",), _CODE_FILES)
    cache = _rule_cache(cache_folder() / "valid_rules.json")
    digest = hashlib.sha256(json.dumps([code, check, columns]).encode()).hexdigest()
    if code and digest in cache:
        return None
    problem = _validate(check, columns)
    if code and problem is None:
        cache.put(digest, True)
        cache.save()
    return problem


@functools.lru_cache(maxsize=4)
def _rule_cache(file: Path) -> ResultCache[bool]:
    return ResultCache(file, max_entries=MAX_CACHED_RULES, is_valid=lambda value: value is True)


def _validate(check: str, columns: tuple[tuple[str, str], ...]) -> str | None:
    """Validates a rule with DuckDB. Does nothing without DuckDB, for example in a Lambda function that only receives
    events.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        return None

    with open_duckdb() as connection:
        forbidden_use = _forbidden_use(connection, check)
        if forbidden_use is not None:
            return forbidden_use
        declared = ", ".join(f'"{name}" {duckdb_type(parse_type(kind))}' for name, kind in columns)
        connection.execute(f"CREATE TABLE rows_ ({declared})").fetchall()
        connection.execute("INSERT INTO rows_ DEFAULT VALUES").fetchall()
        query = f"SELECT {select_item(check)} FROM (SELECT * FROM rows_) AS row_"
        try:
            # A WHERE condition allows no aggregate and no window function.
            kinds = [str(kind) for kind in connection.sql(f"{query} WHERE {select_item(check)}").types]
            # Constants are only parsed on execution: comparing a text with a number fails here instead of in a batch.
            connection.execute(query).fetchall()
        except duckdb.Error as error:
            return _duckdb_message(error, [name for name, _ in columns])
    return None if kinds == ["BOOLEAN"] else f"the result is {', '.join(kinds)}, not boolean"


def _forbidden_use(connection: duckdb.DuckDBPyConnection, check: str) -> str | None:
    """Returns a construct in the expression's syntax tree that rules must not use; None if there is none."""
    ((serialized,),) = connection.execute(
        "SELECT json_serialize_sql($1::VARCHAR)", [f"SELECT {select_item(check)}"]
    ).fetchall()
    parsed = json.loads(serialized)
    if parsed.get("error"):
        return f"invalid SQL expression: {str(parsed.get('error_message', '')).splitlines()[0]}"
    statements = parsed["statements"]
    node = statements[0]["node"]
    if len(statements) != 1 or node.get("type") != "SELECT_NODE" or len(node["select_list"]) != 1:
        return "write one expression"
    if (node.get("from_table") or {}).get("type") not in (None, "EMPTY"):
        return "a rule can only read its row, not a table"
    for part in _ast_nodes(node["select_list"]):
        if part.get("class") == "SUBQUERY":
            return "a rule can only read its row: remove the SELECT"
        name = str(part.get("function_name", "")).lower()
        if part.get("class") == "COLUMN_REF" and str(part["column_names"][0]).lower() in _CLOCK_FUNCTIONS:
            name = str(part["column_names"][0]).lower()
        if name in _volatile_functions():
            return f"{name}() is nondeterministic; for the arrival time use _ingested_at"
    return None


def _ast_nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _ast_nodes(item)


@functools.lru_cache(maxsize=1)
def _volatile_functions() -> frozenset[str]:
    with open_duckdb() as connection:
        names = connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')"
        ).fetchall()
    return frozenset(str(name).lower() for (name,) in names) | _CLOCK_FUNCTIONS


def _duckdb_message(error: Exception, columns: list[str]) -> str:
    text = str(error).splitlines()[0]
    unknown = _UNKNOWN_COLUMN.search(text)
    if unknown is None or unknown[1] in columns:
        return text
    nearest = difflib.get_close_matches(unknown[1], columns, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"its columns are {', '.join(columns)}"
    return f"no column {unknown[1]!r} in this table; {advice}"
