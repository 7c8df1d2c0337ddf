"""The `deltaworks` command: what is declared, what runs, what the tables hold."""

from __future__ import annotations

import gc
import sys

import typer

from deltaworks.cli.commands import command_entries
from deltaworks.cli.lazy import group_class
from deltaworks.cli.skip_pandas import skip_pandas_import
from deltaworks.errors import DeltaworksError

app = typer.Typer(
    name="deltaworks",
    help="A self-hosted telemetry lakehouse: events become answers in minutes, unattended.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich's help costs more to import than all the rest of this command; the groups and commands below have it.
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    cls=group_class(command_entries()),
)


@app.callback()
def _commands() -> None:
    """Commands are in `deltaworks.cli.commands`."""


def main() -> None:
    """Run the command; an error of ours is printed as its message and next step, and becomes its exit code."""
    # Imports make many objects and hardly any garbage; looking for it after every 700 takes a tenth of a short command.
    gc.set_threshold(20_000)
    skip_pandas_import()
    try:
        app(prog_name="deltaworks")
    except DeltaworksError as error:
        from deltaworks.cli.output import print_heading

        print_heading(error.condition, error.message, style="bold red", error=True)
        if error.hint:
            print_heading("Next:", error.hint, error=True)
        sys.exit(error.exit_code)
