"""`deltaworks quarantine`: rows that did not fit, counted and shown; the operation that lands them is derived."""

from __future__ import annotations

import typer

from deltaworks.cli.operations import query_command
from deltaworks.operations.replay import list_rows, show_rows

app = typer.Typer(no_args_is_help=True)
app.command("list")(query_command(list_rows))
app.command("show")(query_command(show_rows))
