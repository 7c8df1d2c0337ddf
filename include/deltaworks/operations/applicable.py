"""What a pipeline can never do, and why: from its declaration alone.

An operation that can only fail has no DAG: a form that nobody can fill in rightly is worse than none. One that can do
some of what it offers has one, whose page says what it cannot.
"""

from __future__ import annotations

from deltaworks.operations.base import Operation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import RecordSourceSpec


def why_not(declared: Operation, spec: PipelineSpec) -> str | None:
    """Why the pipeline can never do it, as a sentence; None where it can."""
    needs = (
        (declared.for_mutable, spec.mutations is not None, "mutations"),
        (declared.for_gold, spec.gold.tables, "gold tables"),
        (declared.for_feeds, spec.feeds, "feeds"),
        (declared.for_models, spec.models, "models"),
    )
    for is_needed, is_declared, what in needs:
        if is_needed and not is_declared:
            return f"It declares no {what}."
    if declared.name == "reprocess" and not isinstance(spec.source, FileSourceSpec | RecordSourceSpec):
        return "It reads a Delta table, which keeps neither objects nor records: start the pipeline over."
    if declared.name == "recover_files" and not isinstance(spec.source, FileSourceSpec):
        return "Lost rows are read again from objects, and its source has none: put the table back to a batch."
    return None


def limits(declared: Operation, spec: PipelineSpec) -> str:
    """What of it the pipeline cannot do, for the page of its DAG; empty where it can do all."""
    announced = {table.announces.table for table in spec.tables if table.announces is not None}
    fixed = [table.name for table in spec.event_tables if table.mutable is not None or table.name in announced]
    if not fixed:
        return ""
    tables = ", ".join(f"`{name}`" for name in fixed)
    if declared.name == "reprocess":
        others = [f"`{table.name}`" for table in spec.event_tables if table.name not in fixed]
        among = f", or *Tables* to some of {', '.join(others)}" if others else ""
        return (
            f"Mutations change {tables}, or they are announced: in place they are refused (`REPROCESS_MUTABLE`). "
            f"Set *Shadow*{among}."
        )
    if declared.name in ("restore", "recover_table", "recover_log"):
        alone = "Leave *Table* empty: all tables go back together, and all requests are applied again."
        return f"{tables} and the tables of requests and notifications are not put back alone (`RESTORE_MUTABLE`). " + (
            alone if declared.name == "restore" else ""
        )
    return ""
