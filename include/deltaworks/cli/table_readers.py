"""`deltaworks tables readers`, `keep` and `release`: who needs old versions, so that VACUUM waits for them."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.records.readers import keep_version, read_readers, release_version
from deltaworks.errors import ConfigError
from deltaworks.maintenance.table_health.catalog_tables import declared_tables
from deltaworks.maintenance.vacuum_holds import holds_on
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

_TABLE = typer.Argument(help="As PIPELINE.TABLE.")
_READER = typer.Argument(help="A name for who reads.")


def register(app: typer.Typer) -> None:
    """Add the commands to `deltaworks tables`."""
    app.command()(readers)
    app.command()(keep)
    app.command()(release)


def readers(pipeline: str) -> None:
    """List who keeps VACUUM back from a pipeline's tables, streams among them, and the words that readers gave."""
    project = catalog()
    spec = project.pipeline(pipeline)
    lake, objects = Lake(project.environment.lake), open_objects(project.environment.lake)
    listing = Table("table", "who", "needs what it was at")
    for table in (each.name for each in declared_tables(project, pipeline=spec.pipeline, control=False)):
        for hold in holds_on(project, lake, objects, pipeline, table):
            since = "a version the log has lost" if hold.since is None else f"{hold.since:%Y-%m-%d %H:%M}"
            listing.add_row(table, hold.by, since)
    console.print(listing)
    now = utc_now()
    for word in read_readers(objects, pipeline):
        state = "until" if word.counts_at(now) else "no more since"
        said = f"{word.table}: {word.reader} keeps version {word.version} {state} {word.until[:16]}"
        console.print(said, highlight=False)


def keep(
    table: str = _TABLE,
    reader: str = _READER,
    version: int = typer.Option(-1, help="The version that is read; by default the newest."),
    hours: float = typer.Option(72.0, help="For how long; say it again to go on."),
) -> None:
    """Keep a version of a table, and those after it, from VACUUM while it is read."""
    project = catalog()
    pipeline, name = _named(project, table)
    if version < 0:
        opened = Lake(project.environment.lake).open(paths.table(pipeline, name))
        version = opened.version() if opened is not None else 0
    objects = open_objects(project.environment.lake)
    word = keep_version(objects, pipeline, name, reader=reader, version=version, hours=hours)
    console.print(f"{table} is kept from version {version} on for {reader}, until {word.until[:16]}.", highlight=False)


def release(table: str = _TABLE, reader: str = _READER) -> None:
    """Keep nothing for this reader any more."""
    project = catalog()
    pipeline, name = _named(project, table)
    there = release_version(open_objects(project.environment.lake), pipeline, name, reader=reader)
    console.print("Released." if there else f"{reader} keeps nothing of {table}.", highlight=False)


def _named(project: Catalog, table: str) -> tuple[str, str]:
    pipeline, _, name = table.partition(".")
    known = {each.name for each in declared_tables(project, pipeline=pipeline, control=False)}
    if name not in known:
        raise ConfigError(
            "TABLE_UNKNOWN", f"There is no table {table!r}.", hint="`deltaworks tables` lists all, as PIPELINE.TABLE."
        )
    return pipeline, name
