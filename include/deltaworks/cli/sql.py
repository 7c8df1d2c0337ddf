"""`deltaworks sql`: DuckDB over the lake, with every table by name."""

from __future__ import annotations

import duckdb
import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.errors import ConfigError
from deltaworks.tables.query import connect


def sql(
    query: str = typer.Argument("", help='A query, such as "SELECT * FROM games.daily_active_users".'),
    limit: int = typer.Option(100, help="Rows to print at most."),
) -> None:
    """Run a query over the tables (`<pipeline>.<table>`); without one, list the tables."""
    connection, names = connect(catalog())
    if not query:
        console.print("\n".join(names) or "There are no tables yet.")
        return
    try:
        result = connection.execute(query)
    except duckdb.Error as error:
        raise ConfigError(
            "SQL_REFUSED", str(error), hint="`deltaworks sql` without a query lists the tables."
        ) from error
    columns = [column[0] for column in result.description or []]
    listing = Table(*columns)
    rows = result.fetchmany(limit + 1)
    for row in rows[:limit]:
        listing.add_row(*("" if value is None else str(value) for value in row))
    console.print(listing)
    if len(rows) > limit:
        console.print(f"(the first {limit} rows; --limit gives more)")
