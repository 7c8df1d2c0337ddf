"""`deltaworks tables`: health, damage, registration and pinned versions of tables."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from deltaworks.cli import table_health
from deltaworks.cli.context import OptionalPipelineArgument, PipelineArgument, catalog, stream_names
from deltaworks.cli.output import CommandOutput, listing_command, print_document, print_json, print_line, print_parts
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.listing import Listing
from deltaworks.errors import ContractError
from deltaworks.maintenance.table_health.catalog_tables import DeclaredTable, declared_tables
from deltaworks.maintenance.vacuum_holds import holds_on
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import asset_code
from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import Depth

if TYPE_CHECKING:
    from deltaworks.tables.entries import TableEntry


class _DefaultToList(TyperGroup):
    """A group that lists tables unless its first argument is a command: `tables`, `tables games` and `tables --control`
    list.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or not (args[0] in self.commands or args[0] in ctx.help_option_names or self._is_mistyped(args[0])):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def _is_mistyped(self, word: str) -> bool:
        """Returns whether a word is near to a command, and names neither a pipeline nor a relay."""
        near = difflib.get_close_matches(word, self.commands, cutoff=0.8)
        return bool(near) and not word.startswith("-") and word not in stream_names(word)


_TABLE = typer.Argument(help="As PIPELINE.TABLE.")
_READER = typer.Argument(help="Name of the reader.")

app = typer.Typer(cls=_DefaultToList)
table_health.register(app)


@app.command()
@listing_command
def check(
    pipeline: OptionalPipelineArgument = "",
    table: str = typer.Argument("", help="Only this table."),
    deep: bool = typer.Option(False, "--deep", help="Also read the footer of each data file."),
    full: bool = typer.Option(False, "--full", help="Also read all rows of each data file."),
) -> CommandOutput:
    """Check for missing commits, files and tables, and a damaged ledger or checkpoint; exits with 11 on damage.

    The size of each data file is compared with the log. Damage within a file of the right size needs --deep or --full.
    """
    from deltaworks.recovery.repair.log_gap import check_pipeline

    project = catalog()
    names = [pipeline] if pipeline else list(project.pipelines)
    depth: Depth = "rows" if full else "footer" if deep else "size"
    damages = [damage for name in names for damage in check_pipeline(project, name, table=table, depth=depth)]
    listing = Listing(("pipeline", "object", "damage", "repaired by"))
    for damage in damages:
        listing.add(damage.pipeline, damage.subject, damage.description, damage.repair)
    return CommandOutput([listing], exit_code=11) if damages else CommandOutput(["No damage found.", listing])


@app.command()
@listing_command
def readers(pipeline: PipelineArgument) -> list[str | Listing]:
    """List readers that hold VACUUM back on a pipeline's tables: streams, and pinned versions."""
    project = catalog()
    spec = project.pipeline(pipeline)
    lake, home = Lake(project.environment.lake), PipelineHome.open(project.environment.lake, pipeline)
    listing = Listing(("table", "reader", "needs the state of"))
    for table in (report.name for report in declared_tables(project, pipeline=spec.pipeline, control=False)):
        try:
            holds = holds_on(project, lake, home, table)
        except ContractError as error:
            listing.add(table, "unknown", error.message)
            continue
        for hold in holds:
            since = "a version missing from the log" if hold.since is None else f"{hold.since:%Y-%m-%d %H:%M}"
            listing.add(table, hold.holder, since)
    parts: list[str | Listing] = [listing]
    now = utc_now()
    for claim in home.readers.read():
        state = "until" if claim.is_active_at(now) else "expired"
        parts.append(f"{claim.table}: {claim.reader} pins version {claim.version} {state} {claim.until[:16]}")
    return parts


@app.command()
def describe(
    table: str = _TABLE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of a table."),
) -> None:
    """Describe a table: columns with types, descriptions and personal data, partitions, owner, location, properties."""
    from deltaworks.specs.descriptions import control_description, table_descriptions
    from deltaworks.tables.entries import read_entry

    project = catalog()
    owner, _, name = table.partition(".")
    declared = next((one for one in declared_tables(project, pipeline=owner) if owner and one.name == name), None)
    if declared is None:
        raise table_health.unknown_table_error(project, table)
    asset = _asset_code(project, declared)
    is_control = declared.kind == "control"
    description = control_description(name) if is_control else table_descriptions(project.pipeline(owner))[name]
    entry = read_entry(Lake(project.environment.lake), declared.key, description, pipeline=owner, name=name)
    if entry is None:
        print_line(f"{table}: {description.text}. Not created yet.")
        if asset:
            print_line(f"Airflow asset: {asset}")
    elif as_json:
        print_json({**dataclasses.asdict(entry), "partition_by": entry.partition_by, "asset": asset or None})
    else:
        print_parts(_described_parts(entry, asset))


def _asset_code(project: Catalog, table: DeclaredTable) -> str:
    """Returns the Airflow asset of a table; empty for tables that are none."""
    if table.kind not in ("bronze", "gold"):
        return ""
    return asset_code(table.kind, table.owner, table.name, uri=project.environment.lake.uri(table.key))


def _described_parts(entry: TableEntry, asset: str) -> list[str | Listing]:
    facts = {
        "table": f"{entry.pipeline}.{entry.name}",
        "kind": entry.kind,
        "owner": entry.owner or "-",
        "tags": ", ".join(entry.tags) or "-",
        "location": entry.location,
        "asset": asset or "-",
        "version": f"{entry.version:,}",
        "created": "-" if entry.created_at is None else f"{entry.created_at:%Y-%m-%d %H:%M}",
        "partitions": ", ".join(entry.partition_by) or "none",
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(entry.properties.items())),
    }
    summary = Listing(tuple(facts), layout="blocks")
    summary.add(*facts.values())
    columns = Listing(("column", "type", "personal", "description"), details=("description",))
    for column in entry.columns:
        columns.add(column.name, column.type, "yes" if column.personal else "", column.description)
    return [*([f"{entry.description}."] if entry.description else []), summary, columns]


@app.command()
def register(
    pipeline: OptionalPipelineArgument = "",
    settings: bool = typer.Option(False, "--settings", help="Print the session's settings, for spark-defaults.conf."),
) -> None:
    """Print SQL that registers tables and views in a session without a metastore; run it with `spark-sql`."""
    from deltaworks.tables.spark_catalog import external_session_settings, registration

    project = catalog(required_service=None if settings else "lake")
    if settings:
        print_document("\n".join(f"{name} {value}" for name, value in external_session_settings(project)))
        return
    result = registration(project, [pipeline] if pipeline else ())
    if result.missing:
        print_line(f"Not registered; run this again later for: {', '.join(result.missing)}.", error=True)
    for name, reason in result.excluded.items():
        print_line(f"Excluded: {name}: {reason}", error=True)
    if result.script:
        print_document("\n".join(f"{statement};" for statement in result.script))


@app.command()
def pin(
    table: str = _TABLE,
    reader: str = _READER,
    version: int = typer.Option(-1, help="Version to pin; by default the newest."),
    hours: float = typer.Option(72.0, help="Hours to pin it; repeat the command to extend."),
) -> None:
    """Pin a version of a table, and later ones, so that VACUUM keeps their files while they are read."""
    project = catalog()
    pipeline, name = _split_table(project, table)
    if version < 0:
        delta_table = Lake(project.environment.lake).open(paths.table(pipeline, name))
        version = delta_table.version() if delta_table is not None else 0
    home = PipelineHome.open(project.environment.lake, pipeline)
    claim = home.readers.pin(name, reader=reader, version=version, hours=hours)
    print_line(f"{table} is pinned from version {version} on for {reader}, until {claim.until[:16]}.")


@app.command()
def unpin(table: str = _TABLE, reader: str = _READER) -> None:
    """Unpin the version that a reader pinned."""
    project = catalog()
    pipeline, name = _split_table(project, table)
    was_pinned = PipelineHome.open(project.environment.lake, pipeline).readers.unpin(name, reader=reader)
    print_line(f"Unpinned {table}." if was_pinned else f"{reader} has pinned no version of {table}.")


def _split_table(project: Catalog, table: str) -> tuple[str, str]:
    pipeline, _, name = table.partition(".")
    if name:
        project.pipeline(pipeline)
    names = {report.name for report in declared_tables(project, pipeline=pipeline, control=False)}
    if name not in names:
        raise table_health.unknown_table_error(project, table)
    return pipeline, name
