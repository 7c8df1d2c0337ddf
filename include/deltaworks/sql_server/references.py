"""Parses a statement: exactly one SELECT, the tables it reads, its parameters; refuses every function that is not known
to be harmless.

DuckDB's own parser is used (`json_serialize_sql`), so that the checked and the executed statement cannot differ. A
session of the server has no files, network and settings anyway; this is the second protection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from deltaworks.errors import ConfigError
from deltaworks.tables.duckdb_session import confine_connection, describe_error, parse_single_select

#: Name of the database in a session, which clients see as catalog.
CATALOG: Final = "lake"
#: Start of the names of registered tables, which only the views of a session may read: they have all columns.
HIDDEN_PREFIX: Final = "__deltaworks_"
MAX_STATEMENT_BYTES: Final = 128 << 10
MAX_PARAMETERS: Final = 1_000
#: Table functions that read nothing but their arguments.
_TABLE_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"})
#: Functions that read or change something outside of the query.
_REFUSED_FUNCTIONS: Final = frozenset(
    {"getenv", "write_log", "current_setting", "setseed", "nextval", "currval", "query", "query_table", "getvariable"}
)
_INFORMATION_SCHEMA: Final = frozenset({"tables", "columns", "schemata", "views"})


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """A checked statement.

    Args:
        text: the SELECT, without a trailing semicolon.
        tables: schema and name of each table it reads, in lower case.
        lists_tables: whether it reads the list of tables, which must all be bound then.
        parameters: number of its positional parameters.
    """

    text: str
    tables: frozenset[tuple[str, str]]
    lists_tables: bool
    parameters: int


class StatementParser:
    """Parses statements with a connection that holds no tables.

    Not for the server's own process, which some statements would stop: see `parser_process`.
    """

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET memory_limit = '256MiB'")
        self._connection.execute("SET temp_directory = ''")
        self._connection.execute("SET threads = 1")
        confine_connection(self._connection)

    def parse(self, text: str) -> ParsedStatement:
        """Parses and checks a statement.

        Raises:
            ConfigError: SQL_REFUSED.
        """
        try:
            if len(text.encode()) > MAX_STATEMENT_BYTES:
                raise ConfigError("SQL_REFUSED", f"The statement is longer than {MAX_STATEMENT_BYTES} bytes.")
            select, names = parse_single_select(self._connection, text)
            row = self._connection.execute("SELECT json_serialize_sql($1)", [select]).fetchone()
        except (duckdb.Error, UnicodeError, RuntimeError) as error:
            raise ConfigError("SQL_REFUSED", describe_error(error)) from error
        try:
            tree = json.loads(row[0]) if row else {"error": True}
        except RecursionError:
            raise ConfigError("SQL_REFUSED", "The statement is nested too deeply.") from None
        if tree.get("error"):
            raise ConfigError("SQL_REFUSED", f"The statement cannot be checked: {tree.get('error_message', '')}")
        try:
            return _checked(select, tree, names)
        except RecursionError:
            raise ConfigError("SQL_REFUSED", "The statement is nested too deeply.") from None


def _checked(text: str, tree: dict[str, Any], parameters: frozenset[str]) -> ParsedStatement:
    if not all(re.fullmatch(r"\d+", name) for name in parameters):
        raise ConfigError("SQL_REFUSED", "Write parameters as ? or $1; named parameters have no order.")
    if len(parameters) > MAX_PARAMETERS or {int(name) for name in parameters} != set(range(1, len(parameters) + 1)):
        raise ConfigError("SQL_REFUSED", f"Number parameters from $1 without gaps, up to {MAX_PARAMETERS}.")
    tables, lists_tables = set[tuple[str, str]](), False
    nodes = list(_nodes(tree))
    ctes = {str(entry.get("key")).lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map") or []}
    for node in nodes:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            table = _table(node, ctes)
            lists_tables = lists_tables or table == ("information_schema", "")
            tables.add(table)
        elif kind == "SHOW_REF":
            lists_tables = lists_tables or not node.get("query")
        elif kind == "TABLE_FUNCTION":
            _check_function(node.get("function") or {}, _TABLE_FUNCTIONS)
        elif node.get("class") == "FUNCTION":
            _check_function(node, None)
    read = frozenset((schema, name) for schema, name in tables if schema and name)
    return ParsedStatement(text, read, lists_tables, len(parameters))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of the tree."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _table(node: dict[str, Any], ctes: set[str]) -> tuple[str, str]:
    """Returns schema and name of a table. A CTE has no schema, a list in `information_schema` no name."""
    path = [str(part) for part in (node.get("qualified_name") or {}).get("path") or []]
    path = path or [str(node.get(key) or "") for key in ("catalog_name", "schema_name", "table_name")]
    names = [part.lower() for part in path if part]
    if node.get("at_clause"):
        raise ConfigError("SQL_REFUSED", "The server reads newest versions only; `deltaworks sql` reads older ones.")
    if len(names) == 3 and names[0] == CATALOG:
        names = names[1:]
    if len(names) == 1 and names[0] in ctes and not names[0].startswith(HIDDEN_PREFIX):
        return "", names[0]
    if len(names) != 2 or names[1].startswith(HIDDEN_PREFIX):
        raise ConfigError("SQL_REFUSED", f"Write a table as pipeline.table, or {CATALOG}.pipeline.table.")
    is_list = names[0] == "information_schema" and names[1] in _INFORMATION_SCHEMA
    return names[0], "" if is_list else names[1]


def _check_function(node: dict[str, Any], allowed: frozenset[str] | None) -> None:
    name = str(node.get("function_name") or "").lower()
    schema = str(node.get("schema") or "").lower()
    is_refused = name in _REFUSED_FUNCTIONS if allowed is None else name not in allowed
    if is_refused or schema not in ("", "main", "pg_catalog"):
        reads = "reads more than the tables" if allowed is None else "is no table function that the server allows"
        raise ConfigError("SQL_REFUSED", f"The function {name or '?'} {reads}.")
