"""What commands print, and the one place that prints: nothing a text says is taken for markup or acted on.

Listings are tables on a terminal, whose wide columns are wrapped; aligned text in a pipe, with every name whole; and
JSON or CSV where that is asked for, which every command that lists takes by `listing_command`. No other module of a
command imports rich or writes to standard output: a test holds that.
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
#: Variables by which rich takes a pipe for a terminal.
_FORCE_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_AS_JSON = typer.Option("--json", help="Print JSON instead of a table: every field, nothing cut.")
_AS_CSV = typer.Option("--csv", help="Print CSV instead of a table.")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command prints, and its exit code where that is not 0."""

    parts: Sequence[OutputPart]
    exit_code: int = 0


def print_line(text: str, *, style: str = "", error: bool = False) -> None:
    """Print one line. A line end in it is shown as an escape: data cannot pretend to be a line of ours."""
    _write(escape_invisible(text), style=style, error=error)


def print_heading(title: str, text: str, *, style: str = "bold", error: bool = False) -> None:
    """Print one line whose beginning is marked."""
    if not _is_terminal(error):
        _write(f"{escape_invisible(title)} {escape_invisible(text)}", error=error)
        return
    from rich.text import Text

    styled = Text(escape_invisible(title), style=style)
    styled.append(f" {escape_invisible(text)}", style="not bold default")
    _console(error).print(styled, soft_wrap=True)


def print_document(text: str) -> None:
    """Print a text of ours of several lines, such as YAML or JSON."""
    _write(escape_invisible_lines(text))


def print_json(value: Any) -> None:
    """Print data as JSON."""
    sys.stdout.write(json_text(value) + "\n")


def print_listing(shown: Listing) -> None:
    """Print a listing for people: as a table on a terminal, as aligned text in a pipe."""
    if shown.title:
        print_line(shown.title, style="bold")
    if not _is_terminal(error=False) or shown.layout != "table":
        _write(plain_text(shown))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for header in shown.headers:
        # Folded and not cut: a name that is half there is of no use.
        table.add_column(Text(escape_invisible(header)), overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(escape_invisible(cell)) for cell in row))
    _console(error=False).print(table, soft_wrap=False)


@contextlib.contextmanager
def progress_bar(total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar on standard error while people watch it: takes how much of the total is done, and what is under way."""
    console = _console(error=True)
    if not console.is_terminal:
        yield lambda done, text: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # The text stands for itself, as everywhere here.
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, text: progress.update(task, completed=done, description=escape_invisible(text))


def print_parts(parts: Sequence[OutputPart], *, form: OutputFormat = "table") -> None:
    """Print listings and sentences in their order; of another form than `table` the listings go to standard output,
    alone as a list of records or by their titles, and the sentences to standard error.
    """
    if form == "table":
        for part in parts:
            if isinstance(part, str):
                print_line(part)
            elif part.cells or len(parts) == 1:  # beside sentences an empty table says nothing
                print_listing(part)
        return
    for part in parts:
        if isinstance(part, str) and part:
            print_line(part, error=True)
    listings = [part for part in parts if isinstance(part, Listing)]
    if form == "csv":
        sys.stdout.write("\n".join(csv_text(item) for item in listings))
    elif len(listings) == 1:
        print_json(listings[0].as_records())
    else:
        print_json({item.title or f"listing_{number}": item.as_records() for number, item in enumerate(listings, 1)})


def listing_command(function: Callable[..., Listing | Sequence[OutputPart] | CommandOutput]) -> Callable[..., None]:
    """A command of a function that returns what it lists: with `--json` and `--csv` beside the function's options."""

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, as_csv: bool, **values: Any) -> None:
        form = chosen_format(as_json=as_json, as_csv=as_csv)
        answered = function(*args, **values)
        answer = answered if isinstance(answered, CommandOutput) else CommandOutput(_parts(answered))
        print_parts(answer.parts, form=form)
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    signature = inspect.signature(function, eval_str=True)
    parameters = [*signature.parameters.values(), *format_parameters()]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def format_parameters() -> tuple[inspect.Parameter, ...]:
    """The options `--json` and `--csv` as parameters of a command."""
    return tuple(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in (("as_json", _AS_JSON), ("as_csv", _AS_CSV))
    )


def chosen_format(*, as_json: bool, as_csv: bool) -> OutputFormat:
    """The form that the options ask for.

    Raises:
        typer.BadParameter: both are given.
    """
    if as_json and as_csv:
        raise typer.BadParameter("give one of --csv and --json")
    return "json" if as_json else "csv" if as_csv else "table"


def _parts(answered: Listing | Sequence[OutputPart]) -> Sequence[OutputPart]:
    return [answered] if isinstance(answered, Listing) else answered


def _write(text: str, *, style: str = "", error: bool = False) -> None:
    if not style or not _is_terminal(error):
        stream = sys.stderr if error else sys.stdout
        stream.write(text + "\n")
        # Whoever reads a pipe follows what takes long, too.
        stream.flush()
        return
    from rich.text import Text

    _console(error).print(Text(text, style=style), soft_wrap=True)


def _is_terminal(error: bool) -> bool:
    """Whether a terminal shows what is printed, as rich has it, which is not loaded where its answer is plain."""
    if (sys.stderr if error else sys.stdout).isatty() or any(map(os.environ.get, _FORCE_TERMINAL_VARIABLES)):
        return _console(error).is_terminal
    return False


def _console(error: bool) -> Console:
    from rich.console import Console

    # Made anew for each use: standard output may have been replaced since.
    return Console(stderr=error, highlight=False, markup=False, emoji=False)
