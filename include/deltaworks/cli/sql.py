"""`deltaworks sql`: DuckDB over the lake, with every table by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import duckdb
import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import listing_command
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError
from deltaworks.tables.query import connect

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog


@listing_command
def sql(
    query: str = typer.Argument("", help='A query, such as "SELECT * FROM games.daily_active_users".'),
    limit: int = typer.Option(100, help="Rows to print at most."),
) -> list[str | Listing]:
    """Run a query over the tables (`<pipeline>.<table>`); without one, list the tables."""
    project = catalog()
    connection, names = connect(project)
    if not query:
        tables = Listing(("table",), [(name,) for name in names])
        return [tables] if names else ["There are no tables yet.", tables]
    try:
        result = connection.execute(query)
    except duckdb.Error as error:
        for name, wrong in project.wrong_pipelines().items():
            if re.search(rf'\b{name}"?\s*\.', query):
                raise wrong from error
        raise _refused(error, query, project, names) from error
    listing = Listing(_distinct([str(column[0]) for column in result.description or []]))
    rows = result.fetchmany(limit + 1)
    for row in rows[:limit]:
        listing.add(*row)
    return [listing, *([f"(the first {limit} rows; --limit gives more)"] if len(rows) > limit else [])]


def _refused(error: duckdb.Error, query: str, project: Catalog, names: Sequence[str]) -> ConfigError:
    """What DuckDB says, on one line; of a table that is declared and has never had a stream, that."""
    for name, spec in project.pipelines.items():
        tables = [table.name for table in spec.tables] + [table.name for table in spec.live]
        for table in (*tables, *(declared.name for declared in spec.gold.tables)):
            if f"{name}.{table}" not in names and re.search(rf"\b{name}\.{table}\b", query):
                return ConfigError(
                    "SQL_REFUSED",
                    f"There is no table {name}.{table} yet: it is declared, and nothing has made it so far.",
                    hint=f"Start the stream, or wait until it has started: `deltaworks status` says how {name} is.",
                )
    text, _, place = str(error).partition("\n\n")
    line = f" ({place.partition(':')[0].lower()})" if place.startswith("LINE ") else ""
    return ConfigError(
        "SQL_REFUSED",
        " ".join(text.split()) + line,
        hint="`deltaworks sql` without a query lists the tables.",
    )


def _distinct(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns that differ as fields of records do: a query may give one name twice."""
    names: list[str] = []
    taken: set[str] = set()
    for column in columns:
        name, number = column, 1
        while name.lower().replace(" ", "_") in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(name.lower().replace(" ", "_"))
        names.append(name)
    return tuple(names)
