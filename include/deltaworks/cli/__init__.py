"""The `deltaworks` command."""

from __future__ import annotations

import gc
import sys

import typer

from deltaworks.cli.commands import command_entries
from deltaworks.cli.lazy import group_class, skip_pandas_import
from deltaworks.errors import DeltaworksError

app = typer.Typer(
    name="deltaworks",
    help="A self-hosted telemetry lakehouse: from events to query results in minutes, unattended.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help of the top level is plain text, because importing rich takes longer than everything else here. The help of
    # groups and commands uses rich.
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    cls=group_class(command_entries()),
)


@app.callback()
def _commands() -> None:
    """Has no effect. The commands are declared in `deltaworks.cli.commands`."""


def main() -> None:
    """Runs the command. A DeltaworksError is printed with its next step and determines the exit code."""
    # Imports create many objects and little garbage. With the default threshold of 700, collection takes a tenth of the
    # time of a short command.
    gc.set_threshold(20_000)
    skip_pandas_import()
    try:
        app(prog_name="deltaworks")
    except DeltaworksError as error:
        from deltaworks.cli.output import print_heading, print_line

        print_heading(error.condition, error.summary, style="bold red", error=True)
        for item in error.items:
            print_line(f"  {item}", error=True)
        if error.hint:
            print_heading("Next:", error.hint, error=True)
        sys.exit(error.exit_code)
