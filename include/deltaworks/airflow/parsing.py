"""What a DAG file reads of what is declared: everything for the scheduler, and its own pipeline for a task.

A task reads its DAG's file before it starts. With 1,000 pipelines that took it seconds of CPU for 999 of them.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow.sdk import get_parsing_context

from deltaworks.control.rule_paths import RULES_DAG
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog, project_root
from deltaworks.specs.groups import GROUP_KIND
from deltaworks.specs.project import load_catalog, pipeline_files

#: DAGs of groups of streams and of namespaces of personal data, whose pipelines have other names than the DAG says.
_MULTI_PIPELINE_KINDS = {
    GROUP_KIND,
    *(item.dag_prefix or item.name for item in OPERATIONS.values() if item.scope == "namespace"),
}


def parsed_catalog() -> Catalog:
    """The catalog for the DAG file that is being parsed, without what is declared wrongly."""
    return load_catalog(skip_invalid=True, only=needed_pipelines(get_parsing_context().dag_id))


def needed_pipelines(dag_id: str | None) -> Collection[str] | None:
    """The pipelines that are declared for one DAG; None for all, where it is about many or none is asked for."""
    kind, separator, subject = (dag_id or "").partition("__")
    if not separator or kind in _MULTI_PIPELINE_KINDS or dag_id == RULES_DAG:
        return None
    # What is none is a relay's, which needs no pipeline.
    return [subject] if subject in pipeline_files(project_root()) else []
