"""`deltaworks quarantine`: counts and shows quarantined rows; the replay command is derived from its operation."""

from __future__ import annotations

import typer

from deltaworks.cli.operations import query_command
from deltaworks.operations.replay import list_rows, show_rows

app = typer.Typer(no_args_is_help=True)
app.command("list")(query_command(list_rows))
app.command("show")(query_command(show_rows))
