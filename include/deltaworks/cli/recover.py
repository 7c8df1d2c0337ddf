"""`deltaworks recover` mends what was damaged, `deltaworks tables check` finds it. Dry runs unless told otherwise."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.cli.restore import show_restored

app = typer.Typer(help="Have a table again that lost commits, files or itself.", no_args_is_help=True)
_TOLD = 20
_DRY_RUN = typer.Option(True, help="Only say what is wrong and what would be done.")
_ALLOW_MISSING = typer.Option(False, help="Leave out rows whose objects are gone too: they are lost.")


def register_check(tables: typer.Typer) -> None:
    """Add `check` to the commands of tables."""
    tables.command()(check)


def check(
    pipeline: str = typer.Argument("", help="Only this pipeline."),
    table: str = typer.Argument("", help="Only this table of it."),
) -> None:
    """Look for missing commits, files and tables, and a damaged ledger or checkpoint; exits with 11 on any."""
    from deltaworks.rework.recover.check import check_pipeline

    project = catalog()
    names = [pipeline] if pipeline else list(project.pipelines)
    found = [damage for name in names for damage in check_pipeline(project, name, table=table)]
    if not found:
        console.print("Nothing is damaged.")
        return
    listing = Table("pipeline", "what", "damage", "mended by")
    for each in found:
        listing.add_row(each.pipeline, each.what, each.told, each.mend)
    console.print(listing)
    raise typer.Exit(11)


@app.command()
def log(
    pipeline: str,
    table: str,
    max_rows: int | None = typer.Option(None, min=0, help="Take no files of more rows out, where it has to go back."),
    dry_run: bool = _DRY_RUN,
) -> None:
    """Have lost commits of a table's Delta log again, from prepared batches; or go back behind them."""
    from deltaworks.rework.recover.log_gap import mend_log

    done = mend_log(catalog(), pipeline, table, dry_run=dry_run, max_rows=max_rows)
    verb = "would be" if dry_run else "was"
    for version, batch in done.made_anew.items():
        console.print(f"Version {version} {verb} made anew from batch {batch}.", highlight=False)
    for version in done.filled:
        console.print(f"Version {version}, of which nothing is on record, {verb} filled in.", highlight=False)
    if done.restore is not None:
        show_restored(done.restore)
    _end(dry_run, bool(done.made_anew or done.filled or done.restore), f"the log of {pipeline}.{table}")


@app.command()
def files(
    pipeline: str,
    table: str,
    max_rows: int | None = typer.Option(None, min=0, help="Go on only where no more rows are lost; needed to do it."),
    allow_missing: bool = _ALLOW_MISSING,
    dry_run: bool = _DRY_RUN,
) -> None:
    """Take data files that are gone out of a table's log, and have their rows again from the objects they came from."""
    from deltaworks.rework.recover.lost_files import mend_files

    done = mend_files(catalog(), pipeline, table, dry_run=dry_run, max_rows=max_rows, allow_missing=allow_missing)
    for path in done.files[:_TOLD]:
        console.print(f"[red]gone:[/] {path}", highlight=False)
    if done.files:
        span = f", {done.batches[0]} to {done.batches[-1]}" if done.batches else ""
        batches = f"{len(done.batches)} batches{span}"
        console.print(f"{len(done.files)} files had {done.rows:,} rows, of {batches}.", highlight=False)
    if done.restore is not None:
        show_restored(done.restore)
    elif dry_run and done.files:
        console.print(f"To do it add: --max-rows {done.rows} --no-dry-run", highlight=False)
    _end(dry_run, bool(done.files or done.restore), f"the files of {pipeline}.{table}")


@app.command()
def table(pipeline: str, table: str, allow_missing: bool = _ALLOW_MISSING, dry_run: bool = _DRY_RUN) -> None:
    """Create a table that was dropped as it is declared, and bring back every batch that had landed in it."""
    from deltaworks.rework.recover.dropped import mend_table

    done = mend_table(catalog(), pipeline, table, dry_run=dry_run, allow_missing=allow_missing)
    how = "the files of their batches" if done.repair == "prepared" else "the objects they came from"
    last = max(done.last_batches.values(), default=None)
    console.print(f"The ledger knows {done.rows:,} rows up to batch {last}; they come from {how}.", highlight=False)
    if done.restore is not None:
        show_restored(done.restore)
    _end(dry_run, True, f"{pipeline}.{table}")


def _end(dry_run: bool, found: bool, what: str) -> None:
    if not found:
        console.print(f"Nothing is wrong with {what}.", highlight=False)
    elif dry_run:
        console.print("Nothing was changed: --no-dry-run does it.")
