"""Restricts a DuckDB connection to one SELECT over given tables, with limits of memory, threads and time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb


def confine_connection(connection: duckdb.DuckDBPyConnection) -> None:
    """Restricts a connection to its registered tables: no files, network, extensions, other databases or variables of
    Python. A statement cannot lift the restriction.
    """
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET allow_community_extensions = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def restrict_connection(connection: duckdb.DuckDBPyConnection, schema: str, *, memory_mib: int, threads: int) -> None:
    """Restricts a connection to the tables of one schema, whose names then need no prefix, and limits memory and
    threads.
    """
    connection.execute(f'USE "{schema}"')
    # Queries that exceed the memory limit fail instead of spilling into the current working directory.
    connection.execute("SET temp_directory = ''")
    connection.execute(f"SET memory_limit = '{memory_mib}MiB'")
    connection.execute(f"SET threads = {threads}")
    confine_connection(connection)


def parse_single_select(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[str, frozenset[str]]:
    """Checks that `text` is exactly one SELECT. Returns it without a trailing semicolon, and the names of its
    parameters.

    Raises:
        duckdb.Error: `text` is not exactly one SELECT, or not valid SQL.
    """
    # The caller puts the text in brackets. A closing bracket in it could end them and start a second statement, so the
    # text is parsed on its own first.
    statements = connection.extract_statements(text)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise duckdb.ParserException("write one SELECT and nothing else")
    data = text.encode()
    # Positions of tokens count bytes.
    tokens = duckdb.tokenize(text)
    ends = (at for at, kind in tokens if kind == duckdb.token_type.operator and data[at : at + 1] == b";")
    return data[: next(ends, len(data))].decode(), frozenset(statements[0].named_parameters)


@contextmanager
def query_timeout(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupts the connection's query if the block runs longer than `seconds`."""
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def describe_error(error: Exception) -> str:
    """Returns an error's message on one line, without DuckDB's excerpt of the query."""
    return " ".join(str(error).partition("\n\n")[0].split()) or type(error).__name__
