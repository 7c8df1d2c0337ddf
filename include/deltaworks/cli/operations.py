"""Commands of operations: derived from what an operation declares, its help and its options included."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.operations.base import Listing, Operation, OperationContext, Report
from deltaworks.operations.job import run_operation
from deltaworks.operations.options import OptionField, option_fields

_PYTHON_TYPES: dict[str, Any] = {"text": str, "integer": int, "number": float, "switch": bool, "names": list[str]}


def operation_command(declared: Operation) -> Callable[..., None]:
    """The function that typer makes a command of: the subject, then an argument or an option for each option."""

    def command(**values: Any) -> None:
        subject = values.pop(declared.scope)
        show_report(run_operation(declared, catalog(), subject, values, say=_say))

    return _with_options(command, declared)


def query_command(run: Callable[[OperationContext, Any], Report]) -> Callable[..., None]:
    """The command of a function that only reads: declared like an operation's, and reachable by command alone."""
    summary = (run.__doc__ or "").splitlines()[0]
    declared = Operation(name=run.__name__, command="", summary=summary, run=f"{run.__module__}:{run.__name__}")
    return operation_command(declared)


def _with_options(command: Callable[..., None], declared: Operation) -> Callable[..., None]:
    fields = option_fields(declared.options())
    subject = inspect.Parameter(
        declared.scope,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, typer.Argument(help=f"The {declared.scope}.", show_default=False)],
    )
    parameters = [subject, *(_parameter(field) for field in sorted(fields, key=lambda field: not field.positional))]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = f"{declared.summary}\n\n{declared.neighbours()}" if declared.command else declared.summary
    return command


def _parameter(field: OptionField) -> inspect.Parameter:
    kind: Any = str if field.positional and field.kind == "names" else _PYTHON_TYPES[field.kind]
    settings: dict[str, Any] = {"help": field.help}
    if field.choices:
        kind = Literal[field.choices]
    if field.kind in ("integer", "number"):
        settings |= {"min": field.minimum, "max": field.maximum}
    default: Any = field.default
    if field.kind == "names":
        default = None
    if field.positional:
        mark: Any = typer.Argument(show_default=False, **settings)
    else:
        flags = f"{field.flag}/{field.off_flag}" if field.kind == "switch" else field.flag
        mark = typer.Option(flags, **settings)
    if field.required:
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, mark])
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, mark]
    )


def show_report(report: Report) -> None:
    """Print a report, and end with its exit code where that is not 0."""
    for part in report.readable():
        if isinstance(part, str):
            console.print(part, highlight=False, markup=False)
        else:
            console.print(listed(part))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def listed(listing: Listing) -> Table:
    """A listing as a table of a terminal."""
    table = Table(*listing.headers)
    for row in listing.rows:
        table.add_row(*row)
    return table


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False)
