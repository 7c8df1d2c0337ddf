"""`deltaworks checkpoint repair`: mend what a stream refuses to start on. A dry run unless told otherwise."""

from __future__ import annotations

import typer

from deltaworks.cli.context import catalog, console

app = typer.Typer(help="Spark's checkpoint of a stream, and the ledger it is checked against.", no_args_is_help=True)


@app.callback()
def checkpoint() -> None:
    """Keep `repair` a word of its own."""


@app.command()
def repair(
    pipeline: str,
    dry_run: bool = typer.Option(True, help="Only say what is wrong and what would be done."),
    retire: bool = typer.Option(False, help="Retire the checkpoint also where nothing is wrong with it."),
) -> None:
    """Retire a damaged checkpoint, and make a ledger that lost batches anew. The stream has to be stopped."""
    from deltaworks.rework.recover.checkpoint import repair_checkpoint

    result = repair_checkpoint(catalog(), pipeline, dry_run=dry_run, retire=retire)
    for line in result.damaged:
        console.print(f"[yellow]damaged:[/] {line}", highlight=False)
    if result.ledger:
        console.print(f"[yellow]the ledger is behind:[/] {result.ledger}", highlight=False)
    if not (result.damaged or result.ledger or retire):
        console.print(f"Nothing is wrong with the checkpoint of {pipeline}.")
        return
    if result.ledger:
        done = "would be recorded" if dry_run else "were recorded"
        console.print(f"{result.ledger_batches} prepared batches {done} in the ledger anew.")
    if result.damaged or retire:
        done = "would be retired" if dry_run else "is retired"
        console.print(f"The checkpoint {done}; the next start goes on from the ledger with a new one.")
    if dry_run:
        console.print("Nothing was changed: --no-dry-run does it.")
