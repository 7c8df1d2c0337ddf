"""Decides from a pipeline's declaration which operations it supports, and why not.

An unsupported operation has no DAG, since no form values would work. A partly supported operation has a DAG whose page
names the restrictions.
"""

from __future__ import annotations

from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DagForm, triggered_forms
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.records import RecordSourceSpec
from deltaworks.specs.sources.selection import FileSourceSpec


def pipeline_forms(spec: PipelineSpec) -> list[DagForm]:
    """Returns the forms of a pipeline whose DAGs run only when triggered, with the operations it can run."""
    pipeline_operations = [one for one in OPERATIONS.values() if one.scope == "pipeline"]
    return triggered_forms(one for one in pipeline_operations if unavailable_reason(one, spec) is None)


def declared_forms(*, mutations: bool, gold: bool, feeds: bool) -> list[DagForm]:
    """Returns the forms of pipelines with these features, whatever their source is.

    Args:
        mutations: they declare mutations. gold: they declare gold tables. feeds: they declare feeds.
    """
    return triggered_forms(
        one
        for one in OPERATIONS.values()
        if one.scope == "pipeline"
        and (mutations or not one.needs_mutations)
        and (gold or not one.needs_gold)
        and (feeds or not one.needs_feeds)
    )


def relay_forms() -> list[DagForm]:
    """Returns the forms of a relay whose DAGs run only when triggered."""
    return triggered_forms(one for one in OPERATIONS.values() if one.scope == "relay")


def unavailable_reason(operation: Operation, spec: PipelineSpec) -> str | None:
    """Returns why the pipeline can never run the operation, as a sentence; None if it can."""
    needs = (
        (operation.needs_mutations, spec.mutations is not None, "mutations"),
        (operation.needs_gold, spec.gold.tables, "gold tables"),
        (operation.needs_feeds, spec.feeds, "feeds"),
        (operation.needs_models, spec.models, "models"),
    )
    for is_needed, is_declared, feature in needs:
        if is_needed and not is_declared:
            return f"It declares no {feature}."
    if operation.name == "reprocess" and not isinstance(spec.source, FileSourceSpec | RecordSourceSpec):
        return "It reads a Delta table, which has neither objects nor records to read again: start the pipeline over."
    if operation.name == "recover_files" and not isinstance(spec.source, FileSourceSpec):
        return "Lost rows are read again from objects, and its source has none: restore the table to a batch."
    return None


def restrictions(operation: Operation, spec: PipelineSpec) -> str:
    """Returns sentences about what the pipeline does not support of an operation, for the DAG's page; empty if none."""
    announced = {table.announces.table for table in spec.tables if table.announces is not None}
    immutable_in_place = [
        table.name for table in spec.event_tables if table.mutable is not None or table.name in announced
    ]
    if not immutable_in_place:
        return ""
    tables = ", ".join(f"`{name}`" for name in immutable_in_place)
    if operation.name == "reprocess":
        other_tables = [f"`{table.name}`" for table in spec.event_tables if table.name not in immutable_in_place]
        table_hint = f", or *Tables* to some of {', '.join(other_tables)}" if other_tables else ""
        return (
            f"Mutations change {tables}, or they are announced: in place they are refused (`REPROCESS_MUTABLE`). "
            f"Set *Shadow*{table_hint}."
        )
    if operation.name in ("restore", "recover_table", "recover_log"):
        all_tables_hint = "Leave *Table* empty: all tables are restored together, and all requests are applied again."
        return f"{tables} and the tables of requests and notifications are not put back alone (`RESTORE_MUTABLE`). " + (
            all_tables_hint if operation.name == "restore" else ""
        )
    return ""
