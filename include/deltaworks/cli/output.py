"""Output of commands. Only this module prints, so that no text is interpreted as markup or as control characters.

Tables fit the terminal: long columns are folded under their rows, minor ones omitted, and no word is broken. In a pipe
each row is one line. Commands created by `listing_command` also print JSON and CSV. A test ensures that no other
command module imports rich or writes to standard output.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deltaworks.control.listing import (
    Listing,
    csv_text,
    escape_invisible_lines,
    hidden_columns,
    json_text,
    plain_text,
    wrap,
)
from deltaworks.errors import escape_invisible

if TYPE_CHECKING:
    from rich.console import Console

#: `wide` is a table with all columns, one line for each row.
OutputFormat = Literal["table", "wide", "json", "csv"]
OutputPart = str | Listing
#: Environment variables that make rich treat a pipe as a terminal.
_FORCE_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_AS_JSON = typer.Option("--json", help="Print JSON instead of a table, with all fields.")
_AS_CSV = typer.Option("--csv", help="Print CSV instead of a table.")
_WIDE = typer.Option("--wide", help="Print all columns, one line for each row, wider than the terminal.")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command, and its exit code.

    Args:
        summary: printed for people instead of the parts, unless they choose `--wide`.
    """

    parts: Sequence[OutputPart]
    exit_code: int = 0
    summary: Sequence[OutputPart] = ()


def print_line(text: str, *, style: str = "", error: bool = False) -> None:
    """Prints one line, wrapped at words on a terminal. Line ends in the text are escaped, so data cannot imitate
    output.
    """
    _write(_wrapped(escape_invisible(text), error), style=style, error=error)


def print_heading(title: str, text: str, *, style: str = "bold", error: bool = False) -> None:
    """Prints one line whose beginning is highlighted."""
    line = _wrapped(f"{escape_invisible(title)} {escape_invisible(text)}", error)
    if not _is_terminal(error):
        _write(line, error=error)
        return
    from rich.text import Text

    styled = Text(line)
    styled.stylize(style, 0, len(escape_invisible(title)))
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


def print_listing(listing: Listing, *, wide: bool = False) -> None:
    """Prints a listing for people: a table that fits the terminal, or one line for each row."""
    width = None if wide else output_width()
    if listing.title:
        print_line(listing.title, style="bold")
    _write(plain_text(listing, width=width))
    if hidden := hidden_columns(listing, width):
        print_line(f"(--wide also shows: {', '.join(hidden)})")


def output_width(*, error: bool = False) -> int | None:
    """Returns the width of the output: of the terminal, or the variable COLUMNS; None for a pipe without it."""
    stream = sys.stderr if error else sys.stdout
    if not (stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        return None
    return shutil.get_terminal_size().columns


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
    if output_format in ("table", "wide"):
        for part in parts:
            if isinstance(part, str):
                print_line(part)
            elif part.cells or len(parts) == 1:  # an empty table is omitted if there are sentences
                print_listing(part, wide=output_format == "wide")
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
    """Builds a command from a function that returns its output, with the options `--json`, `--csv` and `--wide`."""

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, as_csv: bool, wide: bool, **values: Any) -> None:
        form = chosen_format(as_json=as_json, as_csv=as_csv, wide=wide)
        result = function(*args, **values)
        answer = result if isinstance(result, CommandOutput) else CommandOutput(_parts(result))
        print_parts((form == "table" and answer.summary) or answer.parts, output_format=form)
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    signature = inspect.signature(function, eval_str=True)
    parameters = [*signature.parameters.values(), *format_parameters()]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def format_parameters() -> tuple[inspect.Parameter, ...]:
    """Returns the options `--json`, `--csv` and `--wide` as parameters of a command."""
    return tuple(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in (("as_json", _AS_JSON), ("as_csv", _AS_CSV), ("wide", _WIDE))
    )


def chosen_format(*, as_json: bool, as_csv: bool, wide: bool) -> OutputFormat:
    """Returns the format that the options select.

    Raises:
        typer.BadParameter: both `--json` and `--csv` are given.
    """
    if as_json and as_csv:
        raise typer.BadParameter("use either --csv or --json")
    return "json" if as_json else "csv" if as_csv else "wide" if wide else "table"


def _wrapped(line: str, error: bool) -> str:
    width = output_width(error=error)
    return line if width is None else wrap(line, width)


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
