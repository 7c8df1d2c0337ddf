"""Output of commands. Only this module prints, so that no text is interpreted as markup or as control characters.

Listings are tables with wrapped columns on a terminal, and aligned text in a pipe. Commands created by
`listing_command` also print JSON and CSV. A test ensures that no other command module imports rich or writes to
standard output.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deltaworks.control.listing import (
    Listing,
    csv_text,
    escape_invisible,
    escape_invisible_lines,
    json_text,
    plain_text,
)

if TYPE_CHECKING:
    from rich.console import Console

OutputFormat = Literal["table", "json", "csv"]
OutputPart = str | Listing
#: Environment variables that make rich treat a pipe as a terminal.
_FORCE_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_AS_JSON = typer.Option("--json", help="Print JSON instead of a table, with all fields.")
_AS_CSV = typer.Option("--csv", help="Print CSV instead of a table.")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command, and its exit code."""

    parts: Sequence[OutputPart]
    exit_code: int = 0


def print_line(text: str, *, style: str = "", error: bool = False) -> None:
    """Prints one line. Line ends in the text are escaped, so data cannot imitate output."""
    _write(escape_invisible(text), style=style, error=error)


def print_heading(title: str, text: str, *, style: str = "bold", error: bool = False) -> None:
    """Prints one line whose beginning is highlighted."""
    if not _is_terminal(error):
        _write(f"{escape_invisible(title)} {escape_invisible(text)}", error=error)
        return
    from rich.text import Text

    styled = Text(escape_invisible(title), style=style)
    styled.append(f" {escape_invisible(text)}", style="not bold default")
    _console(error).print(styled, soft_wrap=True)


def print_document(text: str) -> None:
    """Prints a text of several lines, such as YAML or JSON."""
    _write(escape_invisible_lines(text))


def clear_screen() -> None:
    """Clears the terminal, if standard output is one."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[2J\x1b[H")


def print_json(value: Any) -> None:
    """Prints data as JSON."""
    sys.stdout.write(json_text(value) + "\n")


def print_listing(listing: Listing) -> None:
    """Prints a listing for people: a table on a terminal, aligned text in a pipe."""
    if listing.title:
        print_line(listing.title, style="bold")
    if not _is_terminal(error=False) or listing.layout != "table":
        _write(plain_text(listing))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for header in listing.headers:
        # Long values are wrapped, because a truncated name is useless.
        table.add_column(Text(escape_invisible(header)), overflow="fold")
    for row in listing.rows:
        table.add_row(*(Text(escape_invisible(cell)) for cell in row))
    _console(error=False).print(table, soft_wrap=False)


@contextlib.contextmanager
def progress_bar(total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Shows a progress bar on standard error if it is a terminal.

    Yields a function that sets the number of completed units and the label.
    """
    console = _console(error=True)
    if not console.is_terminal:
        yield lambda done, text: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Markup in the label is not interpreted.
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, text: progress.update(task, completed=done, description=escape_invisible(text))


def print_parts(parts: Sequence[OutputPart], *, output_format: OutputFormat = "table") -> None:
    """Prints listings and sentences in order.

    For JSON and CSV the listings go to standard output, and the sentences to standard error. A single listing is a list
    of records; several are keyed by title.
    """
    if output_format == "table":
        for part in parts:
            if isinstance(part, str):
                print_line(part)
            elif part.cells or len(parts) == 1:  # an empty table is omitted if there are sentences
                print_listing(part)
        return
    for part in parts:
        if isinstance(part, str) and part:
            print_line(part, error=True)
    listings = [part for part in parts if isinstance(part, Listing)]
    if output_format == "csv":
        sys.stdout.write("\n".join(csv_text(item) for item in listings))
    elif len(listings) == 1:
        print_json(listings[0].as_records())
    else:
        print_json({item.title or f"listing_{number}": item.as_records() for number, item in enumerate(listings, 1)})


def listing_command(function: Callable[..., Listing | Sequence[OutputPart] | CommandOutput]) -> Callable[..., None]:
    """Builds a command from a function that returns its output. The command has the options `--json` and `--csv`."""

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, as_csv: bool, **values: Any) -> None:
        form = chosen_format(as_json=as_json, as_csv=as_csv)
        result = function(*args, **values)
        answer = result if isinstance(result, CommandOutput) else CommandOutput(_parts(result))
        print_parts(answer.parts, output_format=form)
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    signature = inspect.signature(function, eval_str=True)
    parameters = [*signature.parameters.values(), *format_parameters()]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def format_parameters() -> tuple[inspect.Parameter, ...]:
    """Returns the options `--json` and `--csv` as parameters of a command."""
    return tuple(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in (("as_json", _AS_JSON), ("as_csv", _AS_CSV))
    )


def chosen_format(*, as_json: bool, as_csv: bool) -> OutputFormat:
    """Returns the format that the options select.

    Raises:
        typer.BadParameter: both are given.
    """
    if as_json and as_csv:
        raise typer.BadParameter("use either --csv or --json")
    return "json" if as_json else "csv" if as_csv else "table"


def _parts(result: Listing | Sequence[OutputPart]) -> Sequence[OutputPart]:
    return [result] if isinstance(result, Listing) else result


def _write(text: str, *, style: str = "", error: bool = False) -> None:
    if not style or not _is_terminal(error):
        stream = sys.stderr if error else sys.stdout
        stream.write(text + "\n")
        # Flushed, so that readers of a pipe see progress.
        stream.flush()
        return
    from rich.text import Text

    _console(error).print(Text(text, style=style), soft_wrap=True)


def _is_terminal(error: bool) -> bool:
    """Whether output goes to a terminal by rich's rules. Loads rich only if this is possible."""
    if (sys.stderr if error else sys.stdout).isatty() or any(map(os.environ.get, _FORCE_TERMINAL_VARIABLES)):
        return _console(error).is_terminal
    return False


def _console(error: bool) -> Console:
    from rich.console import Console

    # Created for each use, because standard output may have been replaced.
    return Console(stderr=error, highlight=False, markup=False, emoji=False)
