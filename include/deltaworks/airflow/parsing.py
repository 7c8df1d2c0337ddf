"""Loads the part of the catalog that a DAG file needs: all pipelines for the scheduler, one for a task.

A task parses its DAG's file before it starts. With 1,000 pipelines, loading the 999 others took seconds of CPU time.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow.sdk import get_parsing_context

from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog, project_root
from deltaworks.specs.dag_ids import HEALTH_DAG, RULES_DAG, split_dag_id
from deltaworks.specs.groups import GROUP_KIND
from deltaworks.specs.project import load_catalog, pipeline_files

#: Kinds of DAGs whose id does not name all their pipelines: groups of streams and namespaces.
_MULTI_PIPELINE_KINDS = {
    GROUP_KIND,
    *(item.kind for item in OPERATIONS.values() if item.scope == "namespace"),
}


def parsed_catalog() -> Catalog:
    """Returns the catalog for the DAG file that Airflow is parsing. Invalid declarations are left out."""
    return load_catalog(skip_invalid=True, only=needed_pipelines(get_parsing_context().dag_id))


def needed_pipelines(dag_id: str | None) -> Collection[str] | None:
    """Returns the pipelines a DAG needs; None for all, if the DAG covers several or no DAG is given."""
    subject, kind = split_dag_id(dag_id or "")
    if not kind or kind in _MULTI_PIPELINE_KINDS or dag_id in (HEALTH_DAG, RULES_DAG):
        return None
    # Any other subject is a relay, which needs no pipeline.
    return [subject] if subject in pipeline_files(project_root()) else []
