"""Commands derived from operations, with help and options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from deltaworks.cli.context import catalog, pipeline_names
from deltaworks.cli.output import OutputFormat, chosen_format, format_parameters, print_json, print_line, print_parts
from deltaworks.control.listing import plain_record
from deltaworks.operations.base import Operation, OperationContext, Report
from deltaworks.operations.job import run_operation
from deltaworks.operations.options import OptionField, option_fields

_WAIT_MINUTES = 60.0
_IN_AIRFLOW = "Trigger the operation's DAG with these options instead of running it here, and follow the run."
_WAIT = f"Minutes to follow the run, {_WAIT_MINUTES:.0f} by default; 0: not at all."
_PYTHON_TYPES: dict[str, Any] = {"text": str, "integer": int, "number": float, "switch": bool, "names": list[str]}


def operation_command(operation: Operation) -> Callable[..., None]:
    """Builds the command of an operation. Its parameters are the subject, then the operation's options."""

    def command(**values: Any) -> None:
        subject = values.pop(operation.scope)
        form = chosen_format(**{name: values.pop(name) for name in ("as_json", "as_csv", "wide")})
        in_airflow, wait_minutes = values.pop("in_airflow", False), values.pop("wait_minutes", None)
        # For JSON and CSV, progress messages go to standard error.
        echo = functools.partial(print_line, error=form in ("json", "csv"))
        if not in_airflow:
            if wait_minutes is not None:
                raise typer.BadParameter("--wait-minutes needs --in-airflow")
            show_report(run_operation(operation, catalog(), subject, values, echo=echo), form=form)
            return
        # Imported only if needed.
        from deltaworks.operations.in_airflow import run_in_airflow

        minutes = _WAIT_MINUTES if wait_minutes is None else wait_minutes
        report = run_in_airflow(
            operation, catalog(required_service=None), subject, values, wait_minutes=minutes, echo=echo
        )
        show_report(report, form=form)

    return _add_options(command, operation)


def query_command(run: Callable[[OperationContext, Any], Report]) -> Callable[..., None]:
    """Builds the command of a read-only function, declared like an operation but available only as a command."""
    summary = (run.__doc__ or "").splitlines()[0]
    operation = Operation(name=run.__name__, command="", summary=summary, run=f"{run.__module__}:{run.__name__}")
    return operation_command(operation)


def _add_options(command: Callable[..., None], operation: Operation) -> Callable[..., None]:
    fields = option_fields(operation.options_model())
    complete = pipeline_names if operation.scope == "pipeline" else None
    subject = inspect.Parameter(
        operation.scope,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[
            str, typer.Argument(help=f"The {operation.scope}.", show_default=False, autocompletion=complete)
        ],
    )
    parameters = [subject, *(_parameter(field) for field in sorted(fields, key=lambda field: not field.positional))]
    parameters += _airflow_parameters() if operation.command else []
    parameters += format_parameters()
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = (
        f"{operation.summary}\n\n{operation.concurrency_note()}" if operation.command else operation.summary
    )
    return command


def _airflow_parameters() -> list[inspect.Parameter]:
    """Returns the options --in-airflow and --wait-minutes; none for read-only commands."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, typer.Option(flag, **settings)],
        )
        for name, kind, default, flag, settings in (
            ("in_airflow", bool, False, "--in-airflow", {"help": _IN_AIRFLOW}),
            ("wait_minutes", float | None, None, "--wait-minutes", {"help": _WAIT, "min": 0.0}),
        )
    ]


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
        parameter: Any = typer.Argument(show_default=False, **settings)
    else:
        flags = f"{field.flag}/{field.off_flag}" if field.kind == "switch" else field.flag
        parameter = typer.Option(flags, **settings)
    if field.required:
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, parameter])
    if default is None:
        kind = kind | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, parameter]
    )


def show_report(report: Report, *, form: OutputFormat = "table") -> None:
    """Prints a report (as JSON: its records), and exits with its exit code unless that is 0."""
    if form == "json" and report.results:
        print_parts([part for part in report.parts if isinstance(part, str)], output_format="csv")
        print_json([plain_record(result) for result in report.results])
    else:
        print_parts(report.displayed_parts(), output_format=form)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
