"""`deltaworks reprocess`: read what has landed again, in place or into shadow tables; counts unless told otherwise."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.cli.sizes import readable_bytes
from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import new_reprocess_id
from deltaworks.errors import ConfigError
from deltaworks.rework.reprocess.arguments import request
from deltaworks.rework.reprocess.plan import Planner, ReprocessCount, landing_opener
from deltaworks.tables.lake import Lake

_KEYS_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reprocess)


def reprocess(
    pipeline: str,
    batches: str = typer.Option("", help="The first and the last batch, such as 10-20."),
    files: str = typer.Option("", help="Keys or patterns of keys with commas between them."),
    file_list: Path | None = typer.Option(None, help="A file with one key or pattern on each line."),
    events: str = typer.Option("", help="Objects with events of a time, such as 2026-01-01..2026-01-02 (excluded)."),
    from_start: bool = typer.Option(False, help="Everything that is complete."),
    tables: str = typer.Option("", help="Only these tables, with commas between them."),
    shadow: bool = typer.Option(False, help="Into new tables <table>__<id> beside the present ones."),
    allow_missing: bool = typer.Option(False, help="Leave the rows of objects that are gone as they are."),
    exact: bool = typer.Option(False, help="Count by reading all objects, not a sample."),
    name: str = typer.Option("", "--id", help="Go on with this reprocess, or begin it under this name."),
    dry_run: bool = typer.Option(True, help="Count only; --no-dry-run does it."),
) -> None:
    """Read objects that have landed again and replace their rows; the stream goes on meanwhile."""
    project = catalog()
    spec, storage = project.pipeline(pipeline), project.environment.lake
    asked = request(
        {
            "batches": batches,
            "files": f"@{file_list}" if file_list else files,
            "events": events,
            "from_start": from_start,
            "tables": tables,
            "shadow": shadow,
            "allow_missing": allow_missing,
        }
    )
    if dry_run:
        if asked is None:
            raise ConfigError(
                "REPROCESS_SELECTION",
                "Nothing is selected.",
                hint="Give --batches, --files, --file-list, --events or --from-start.",
            )
        planner = Planner(Lake(storage), open_objects(storage), spec)
        _show_count(planner.count(asked, landing_opener(project.environment, spec), exact=exact))
        return
    from deltaworks.rework.reprocess.run import Reprocess
    from deltaworks.tables.spark.session import build_session

    name = name or new_reprocess_id()
    console.print(f"Reprocess {name}; if it is broken off: deltaworks reprocess {pipeline} --id {name} --no-dry-run")
    spark = build_session(project.environment, app_name=f"reprocess.{pipeline}")
    result = Reprocess(spark, project, pipeline).run(name, asked)
    listing = Table("table", "written to", "outcome", "rows out", "rows in", "dates", "version", "seconds")
    for each in result.tables:
        counts = (f"{each.rows_out:,}", f"{each.rows_in:,}", str(len(each.dates)), str(each.version))
        listing.add_row(each.table, each.target, each.outcome, *counts, f"{each.seconds:.1f}")
    console.print(listing)
    console.print(f"{result.objects} objects, {readable_bytes(result.bytes)}, {result.seconds:.1f} s.")
    _show_rest(result.gone, result.not_fitting, result.kept_in_quarantine)


def _show_count(count: ReprocessCount) -> None:
    how = "all read" if count.exact else f"estimated from {count.read} of them"
    console.print(
        f"{count.objects} objects, {readable_bytes(count.bytes)}, up to batch {count.up_to_batch}; rows in: {how}."
    )
    listing = Table("table", "rows out", "rows in")
    for table in count.tables:
        listing.add_row(table.table, "?" if table.rows_out is None else f"{table.rows_out:,}", f"{table.rows_in:,}")
    console.print(listing)
    _show_rest(count.gone, count.not_fitting, 0)
    console.print("Nothing was changed; --no-dry-run does it.")


def _show_rest(gone: tuple[str, ...], not_fitting: int, kept_in_quarantine: int) -> None:
    if gone:
        console.print(f"{len(gone)} objects cannot be read any more: {', '.join(gone[:_KEYS_SHOWN])}")
    if not_fitting:
        console.print(f"{not_fitting} events have no place in the tables asked for.")
    if kept_in_quarantine:
        console.print(
            f"{kept_in_quarantine} rows stay in quarantine, since they belong to tables not asked for too: "
            "reprocess without --tables to take them out."
        )
