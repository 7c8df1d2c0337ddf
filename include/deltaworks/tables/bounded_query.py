"""Declared SQL asked of DuckDB within bounds: one SELECT, over nothing but the tables it is shown, ended in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb


def restrict_connection(connection: duckdb.DuckDBPyConnection, schema: str, *, memory_mib: int, threads: int) -> None:
    """Let a connection read the tables of one schema by their bare names, and nothing else, within bounds."""
    connection.execute(f'USE "{schema}"')
    # What does not fit into memory is refused, and not spilled into the folder this process happens to be in.
    connection.execute("SET temp_directory = ''")
    connection.execute("SET enable_external_access = false")
    connection.execute(f"SET memory_limit = '{memory_mib}MiB'")
    connection.execute(f"SET threads = {threads}")
    connection.execute("SET lock_configuration = true")


def parse_single_select(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[str, frozenset[str]]:
    """The one SELECT of a file, without the semicolon that ends it and what stands behind, and its named parameters.

    Raises:
        duckdb.Error: it is something else, or no SQL.
    """
    # Alone first: behind a bracket too many it could go on with another statement.
    statements = connection.extract_statements(text)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise duckdb.ParserException("write one SELECT and nothing else")
    tokens = duckdb.tokenize(text)
    statement_ends = (at for at, kind in tokens if kind == duckdb.token_type.operator and text[at] == ";")
    return text[: next(statement_ends, len(text))], frozenset(statements[0].named_parameters)


@contextmanager
def query_timeout(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupt what the connection is asked within the block once it takes longer."""
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def describe_error(error: Exception) -> str:
    """What an error says, on one line, without what DuckDB shows of the query."""
    return " ".join(str(error).partition("\n\n")[0].split()) or type(error).__name__
