"""DuckDB sessions over rows in memory, shared by the process or restricted to one SELECT over given tables.

A restricted session has limits of memory, threads and time; the free memory is measured here too.

All sessions share one in-memory database per process: opening a database takes 20 ms of CPU time, opening a further
session 0.01 ms. A merge needs several sessions per batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import duckdb
import psutil


def duckdb_session() -> duckdb.DuckDBPyConnection:
    """Opens a session of this process's in-memory database; a context manager.

    Registered tables, settings and temporary tables are private to the session. Safe in threads (one session each) and
    in forked processes.
    """
    try:
        session = _database(os.getpid()).cursor()
        session.execute("SELECT 1").fetchall()
    except duckdb.Error:
        # After an internal error a DuckDB database rejects all further queries.
        _database.cache_clear()
        session = _database(os.getpid()).cursor()
    return session


@lru_cache(maxsize=1)
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Returns the process's database. Cached by process id, because DuckDB's threads do not survive a fork."""
    return duckdb.connect(":memory:")


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


#: Folder with a container's own limits (control groups, version 2).
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Returns the bytes this process can still allocate without swapping, within its container's limit.

    File pages that the kernel would drop count as free, both in a container and on the machine.
    """
    machine = int(psutil.virtual_memory().available)
    container = _free_container_bytes(cgroup)
    return machine if container is None else min(machine, container)


def _free_container_bytes(cgroup: Path) -> int | None:
    """Returns the free bytes within a control group's limit; None if there is no readable limit."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))
