"""What a pipeline can never do, and why: from its declaration alone.

An operation that can only fail has no DAG: a form that nobody can fill in rightly is worse than none. One that can do
some of what it offers has one, whose page says what it cannot.
"""

from __future__ import annotations

from deltaworks.operations.base import Operation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import RecordSourceSpec


def unavailable_reason(declared: Operation, spec: PipelineSpec) -> str | None:
    """Why the pipeline can never do it, as a sentence; None where it can."""
    needs = (
        (declared.needs_mutations, spec.mutations is not None, "mutations"),
        (declared.needs_gold, spec.gold.tables, "gold tables"),
        (declared.needs_feeds, spec.feeds, "feeds"),
        (declared.needs_models, spec.models, "models"),
    )
    for is_needed, is_declared, what in needs:
        if is_needed and not is_declared:
            return f"It declares no {what}."
    if declared.name == "reprocess" and not isinstance(spec.source, FileSourceSpec | RecordSourceSpec):
        return "It reads a Delta table, which keeps neither objects nor records: start the pipeline over."
    if declared.name == "recover_files" and not isinstance(spec.source, FileSourceSpec):
        return "Lost rows are read again from objects, and its source has none: put the table back to a batch."
    return None


def restrictions(declared: Operation, spec: PipelineSpec) -> str:
    """What of it the pipeline cannot do, for the page of its DAG; empty where it can do all."""
    announced = {table.announces.table for table in spec.tables if table.announces is not None}
    immutable_in_place = [
        table.name for table in spec.event_tables if table.mutable is not None or table.name in announced
    ]
    if not immutable_in_place:
        return ""
    tables = ", ".join(f"`{name}`" for name in immutable_in_place)
    if declared.name == "reprocess":
        other_tables = [f"`{table.name}`" for table in spec.event_tables if table.name not in immutable_in_place]
        table_hint = f", or *Tables* to some of {', '.join(other_tables)}" if other_tables else ""
        return (
            f"Mutations change {tables}, or they are announced: in place they are refused (`REPROCESS_MUTABLE`). "
            f"Set *Shadow*{table_hint}."
        )
    if declared.name in ("restore", "recover_table", "recover_log"):
        whole_pipeline_hint = "Leave *Table* empty: all tables go back together, and all requests are applied again."
        return f"{tables} and the tables of requests and notifications are not put back alone (`RESTORE_MUTABLE`). " + (
            whole_pipeline_hint if declared.name == "restore" else ""
        )
    return ""
