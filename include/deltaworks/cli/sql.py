"""`deltaworks sql` runs DuckDB on the lake or serves SQL to programs; `deltaworks notebook` connects a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import duckdb
import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command, print_document, print_line
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.table import REST_COLUMN
from deltaworks.tables.duckdb_session import confine_connection, describe_error
from deltaworks.tables.query import AS_OF_CLAUSE, connect, how_a_table_is_created

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.tables.time_travel import TimeTravel


@listing_command
def sql(
    query: str = typer.Argument("", help='Query, such as "SELECT * FROM games.daily_active_users".'),
    limit: int = typer.Option(100, help="Maximum number of rows to print."),
    unconfined: bool = typer.Option(
        False, "--unconfined", help="Also allow files, the network and DuckDB's extensions, with your permissions."
    ),
    serve: bool = typer.Option(
        False,
        "--serve",
        help="Serve SQL to other programs until Ctrl-C: with one user, or as the environment declares.",
    ),
    host: str = typer.Option("127.0.0.1", help="--serve without a declared server: address to listen on."),
    port: int = typer.Option(31337, min=0, max=65535, help="--serve without a declared server: port, 0 for any."),
    hash_password: bool = typer.Option(
        False, "--hash-password", help="Ask for a password and print its hash for the SQL server's file of users."
    ),
) -> list[str | Listing]:
    """Run an SQL query on the tables (`<pipeline>.<table>`); without one, list the tables.

    The query reads nothing but the tables and writes no file, unless it is unconfined.
    """
    if hash_password:
        return [_hashed_password()]
    project = catalog()
    if serve:
        _serve(project, host, port)
    if not query:
        problems: dict[str, str] = {}
        _, names = connect(project, on_unreadable=problems.__setitem__)
        tables = Listing(("table", "problem"), [(name, problems.get(name, "")) for name in names])
        return [tables] if names else ["There are no tables yet.", tables]
    columns, rows = _run_query(query, project, limit=limit, unconfined=unconfined)
    listing = Listing(_unique_names(columns))
    for row in rows[:limit]:
        listing.add(*row)
    return [listing, *([f"(the first {limit} rows; --limit gives more)"] if len(rows) > limit else [])]


def _hashed_password() -> str:
    from deltaworks.sql_server.users import hash_password

    return hash_password(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


def _serve(project: Catalog, host: str, port: int) -> NoReturn:
    """Serves as the environment declares, or with a random password for the person who starts it; ends the process.

    Raises:
        ConfigError: SPEC_INVALID, another host than this machine; the server's own errors.
    """
    import signal

    from deltaworks.specs.sql_server import SqlListenSpec, is_loopback
    from deltaworks.sql_server.process import SqlServerProcess, end_process, serve_own

    if project.environment.sql_server is not None:
        process = SqlServerProcess(project)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: process.stop())
        host = project.environment.sql_server.listen.host
        print_line(f"Serving SQL on {host}, as declared. Ctrl-C ends it.", error=True)
        process.run()
        end_process(0)
    if not is_loopback(host):
        raise ConfigError(
            "SPEC_INVALID",
            f"{host} is reached from other machines, which would send passwords in plain text.",
            hint="Declare sql_server with tls and users in the environment.",
        )
    serve_own(project, SqlListenSpec(host=host, port=port), announce=_announce)
    end_process(0)


def _announce(url: str, password: str) -> None:
    print_line(f"Serving SQL at {url} for user deltaworks with password {password}", error=True)
    jdbc = f"jdbc:arrow-flight-sql://{url.partition('://')[2]}/?useEncryption=false"
    print_line(f"JDBC: {jdbc}. Ctrl-C ends it.", error=True)


def notebook(
    file: Path | None = typer.Argument(None, help="New notebook; without it, the connection cell is printed."),
    pipelines: str = typer.Option("", help="Only tables of these pipelines, separated by commas; by default all."),
) -> None:
    """Write a Jupyter notebook with the cell that connects it to the lake; without a file, print that cell."""
    from deltaworks.operations.options import split_names
    from deltaworks.scaffolding.other_tools import connection_cell, write_notebook
    from deltaworks.specs.project import load_catalog

    names = split_names(pipelines)
    if names:
        load_catalog(skip_invalid=True, only=names)
    if file is None:
        print_document(connection_cell(names))
        return
    path = file.with_suffix(".ipynb") if not file.suffix else file
    try:
        write_notebook(path, names)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}; no notebook was written") from None
    print_line(f"Written: {path}")


def _connect(project: Catalog, statement: str, *, unconfined: bool) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    connection, names = connect(project, statement=statement)
    if not unconfined:
        # Before any part of the statement is evaluated, such as the version of a table.
        confine_connection(connection)
    return connection, names


def _run_query(
    query: str, project: Catalog, *, limit: int, unconfined: bool
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Returns the columns and up to `limit` + 1 rows; the additional row tells the caller that there are more."""
    _check_variants(query, project)
    connection, names = _connect(project, query, unconfined=unconfined)
    time_travel = _time_travel(query, connection, project)
    try:
        return _rows(connection, query if time_travel is None else time_travel.rewrite(query), limit)
    except duckdb.CatalogException as error:
        # Either the name is unknown, and DuckDB suggests the closest of all tables, or the query itself defines it.
        connection, names = _connect(project, "", unconfined=unconfined)
        try:
            return _rows(connection, query, limit)
        except duckdb.Error as again:
            raise _query_error(error if time_travel is not None else again, query, project, names) from error
    except duckdb.PermissionException as error:
        raise ConfigError(
            "SQL_REFUSED",
            describe_error(error),
            hint="Add --unconfined to let the query use files, the network and extensions, with your permissions.",
        ) from error
    except duckdb.Error as error:
        missing = time_travel.missing_files_error() if time_travel is not None else None
        raise missing or _query_error(error, query, project, names) from error


def _check_variants(query: str, project: Catalog) -> None:
    """Rejects operations on undeclared fields without a cast, whose results mislead. Loads the SQL parser if needed.

    Raises:
        ConfigError: SQL_REFUSED.
    """
    tables = (table for spec in project.pipelines.values() for table in spec.tables)
    if REST_COLUMN not in query.lower() or not any(table.keep_rest == "variant" for table in tables):
        return
    from sqlglot.errors import SqlglotError

    from deltaworks.specs.checks.query_errors import parse_query, variant_problems

    try:
        parsed = parse_query(query, dialect="duckdb")
    except SqlglotError:
        return
    problem = next(variant_problems(parsed, "duckdb", returns_variants=True), None) if parsed is not None else None
    if problem is not None:
        raise ConfigError("SQL_REFUSED", f"Line {problem[0]}: {problem[1]}.")


def _time_travel(query: str, connection: duckdb.DuckDBPyConnection, project: Catalog) -> TimeTravel | None:
    """Returns the resolver of time-travel tables; None if the query has none, so that no SQL parser is loaded."""
    if not AS_OF_CLAUSE.search(query):
        return None
    from deltaworks.tables.time_travel import TimeTravel

    return TimeTravel(connection, project)


def _rows(connection: duckdb.DuckDBPyConnection, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    result = connection.execute(statement)
    return [str(column[0]) for column in result.description or []], result.fetchmany(limit + 1)


def _query_error(error: duckdb.Error, query: str, project: Catalog, names: Sequence[str]) -> DeltaworksError:
    """Returns the error of a query: the error of an invalid pipeline that it names, of a damaged data file, or DuckDB's
    message.
    """
    for name, error_of_spec in project.invalid_pipelines().items():
        if re.search(rf'\b{name}"?\s*\.', query):
            return error_of_spec
    read = [name for name in names if re.search(rf"\b{re.escape(name)}\b", query)]
    if (damaged := data_file_error(error, tables=read)) is not None:
        return damaged
    return _sql_rejected(error, query, project, names)


def _sql_rejected(error: duckdb.Error, query: str, project: Catalog, names: Sequence[str]) -> ConfigError:
    """Formats DuckDB's message on one line, or explains that a declared table does not exist yet."""
    for name, spec in project.pipelines.items():
        tables = [table.name for table in spec.tables] + [table.name for table in spec.live]
        tables += [gold.name for gold in spec.gold.tables]
        tables += [reference.name for reference in spec.references] + [model.name for model in spec.models]
        tables += [view.name for view in spec.views]
        for table in tables:
            if f"{name}.{table}" not in names and re.search(rf"\b{name}\.{table}\b", query):
                return ConfigError(
                    "SQL_REFUSED",
                    f"Table {name}.{table} is declared but does not exist yet.",
                    hint=how_a_table_is_created(spec, table, now=utc_now()),
                )
    text, _, location = str(error).partition("\n\n")
    line = f" ({location.partition(':')[0].lower()})" if location.startswith("LINE ") else ""
    return ConfigError("SQL_REFUSED", " ".join(text.split()) + line)


def _unique_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Makes column names unique, since a query may return several columns of one name."""
    names: list[str] = []
    used: set[str] = set()
    for column in columns:
        name, number = column, 1
        while name.lower().replace(" ", "_") in used:
            number += 1
            name = f"{column}_{number}"
        used.add(name.lower().replace(" ", "_"))
        names.append(name)
    return tuple(names)
