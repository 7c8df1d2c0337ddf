"""The `deltaworks` command."""

from __future__ import annotations

import gc
import os
import sys

import typer

from deltaworks import __version__
from deltaworks.cli.commands import command_entries, nested_operations
from deltaworks.cli.lazy import group_class
from deltaworks.control.provenance import PERSON_VARIABLE
from deltaworks.sources.pandas_blocker import skip_pandas_import

app = typer.Typer(
    name="deltaworks",
    help="A self-hosted telemetry lakehouse: from events to query results in minutes, unattended.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help of the top level is plain text, because importing rich takes longer than everything else here. The help of
    # groups and commands uses rich.
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
    cls=group_class(command_entries(), nested_operations()),
)


def _print_version(requested: bool) -> None:
    if requested:
        from deltaworks.cli.output import print_line

        print_line(f"deltaworks {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Has no effect. The commands are declared in `deltaworks.cli.commands`."""


def main() -> None:
    """Runs the command. A DeltaworksError is printed with its next step and determines the exit code.

    So are errors of Spark and of servers that are known, without the traces of their clients.
    """
    # Imports create many objects and little garbage. With the default threshold of 700, collection takes a tenth of the
    # time of a short command.
    gc.set_threshold(20_000)
    skip_pandas_import()
    # A person at a terminal is who the operating system says. Only tasks get a name from Airflow.
    os.environ.pop(PERSON_VARIABLE, None)
    try:
        app(prog_name="deltaworks")
    except Exception as raised:
        from deltaworks.cli.output import print_heading, print_line
        from deltaworks.control.job import as_deltaworks_error

        error = as_deltaworks_error(raised)
        if error.condition == "JOB_FAILED":
            raise
        print_heading(error.condition, error.summary, style="bold red", error=True)
        for item in error.items:
            print_line(f"  {item}", error=True)
        if error.hint:
            print_heading("Next:", error.hint, error=True)
        sys.exit(error.exit_code)
