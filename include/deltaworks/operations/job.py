"""Runs an operation as a job: `spark-submit spark_jobs/<name>.py --pipeline games …`, or as a process without Spark."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from deltaworks.control.job import print_result_line, run_job
from deltaworks.control.listing import LOG_WIDTH, plain_text
from deltaworks.control.provenance import airflow_run_id, current_person
from deltaworks.errors import escape_invisible
from deltaworks.operations.approval_checks import approved_options, is_unattended, open_approvals
from deltaworks.operations.base import Operation, OperationContext, Report
from deltaworks.operations.options import OPTIONS_FLAG, from_argument, name_fields, option_fields, read_options
from deltaworks.operations.registry import get_operation

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: Set by spark-submit in the process of a driver.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """Runs an operation as a job, prints its report and its results as the last line, and returns the exit code."""
    from deltaworks.sources.pandas_blocker import skip_pandas_import
    from deltaworks.specs.project import load_catalog

    if GATEWAY_VARIABLE not in os.environ:
        skip_pandas_import()
    operation = get_operation(name)
    arguments = vars(build_parser(operation).parse_args(argv))

    def run() -> int:
        values = from_argument(arguments["options"])
        report = run_operation(operation, load_catalog(skip_invalid=True), arguments[operation.scope], values)
        print_report(report, operation if airflow_run_id() else None)
        return report.exit_code

    return run_job(run)


def run_operation(
    operation: Operation, catalog: Catalog, subject: str, values: dict[str, Any], *, echo: Callable[[str], None] = print
) -> Report:
    """Runs an operation with these option values; None for the default.

    In Airflow an operation that needs approval stays within the approved options and counts. In nightly maintenance an
    operation stays within the nightly limits.

    Raises:
        ConfigError: OPTION_INVALID; PIPELINE_UNKNOWN, RELAY_UNKNOWN or NAMESPACE_UNKNOWN for the subject.
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_REFUSED, APPROVAL_UNREADABLE.
    """
    options = read_options(
        operation.options_model(), {key: value for key, value in values.items() if value is not None}
    )
    {"pipeline": catalog.pipeline, "relay": catalog.relay, "namespace": catalog.namespace}[operation.scope](subject)
    run = airflow_run_id()
    nightly = is_unattended(operation, subject, options)
    context = OperationContext(
        operation=operation, catalog=catalog, subject=subject, run_id=run, nightly=nightly, echo=echo
    )
    if not (operation.approval and run) or nightly or getattr(options, "dry_run", False):
        return operation.load()(context, options)
    options, approval = approved_options(operation, catalog, subject, options, run=run, person=current_person())
    echo(f"Approved by {approval.approved_by} at {approval.approved_at}, requested by {approval.requested_by}.")
    report = operation.load()(context, options)
    open_approvals(operation, catalog, subject).mark_used(approval)
    return report


def build_parser(operation: Operation) -> argparse.ArgumentParser:
    """Returns a parser of the job's arguments: its subject, and its options as one JSON object."""
    fields = option_fields(operation.options_model())
    listed = "\n".join(f"  {field.name} ({field.kind}): {field.help}" for field in fields)
    parser = argparse.ArgumentParser(
        prog=operation.name,
        description=operation.summary,
        epilog=f"options:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(f"--{operation.scope}", required=True)
    parser.add_argument(OPTIONS_FLAG, default="{}", metavar="JSON", help="options that differ from their defaults")
    return parser


def print_report(report: Report, form: Operation | None = None) -> None:
    """Prints a report as plain text, with its results as one line of JSON at the end.

    Args:
        form: the operation whose form people use; its fields are named instead of flags.
    """
    fields = () if form is None else option_fields(form.options_model())
    for part in report.displayed_parts():
        text = (
            name_fields(escape_invisible(part), fields) if isinstance(part, str) else plain_text(part, width=LOG_WIDTH)
        )
        sys.stdout.write(text + "\n")
    print_result_line(report.results)
