"""Loads the catalog for a DAG file, and builds placeholder DAGs for invalid declarations, which show the errors.

Without placeholders Airflow would deactivate the pipeline's DAGs without a reason, and a running task could be neither
seen nor stopped there. They have no schedule and no form, and a manual run fails immediately with the errors. Once the
declaration is valid the original DAGs return with their runs.

The scheduler parses a DAG file with all pipelines, and a task only with its own: with 1,000 pipelines, loading the 999
others took seconds of CPU time before each task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator, chain, get_parsing_context

from deltaworks.airflow import names
from deltaworks.airflow.runbooks import invalid_runbook
from deltaworks.errors import DeltaworksError
from deltaworks.operations.dag_forms import DagForm, declared_forms, relay_forms
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog, project_root
from deltaworks.specs.dag_ids import HEALTH_DAG, RULES_DAG, split_dag_id
from deltaworks.specs.groups import GROUP_KIND
from deltaworks.specs.project import load_catalog, pipeline_files

if TYPE_CHECKING:
    from airflow.sdk import Context

TAG: Final = "invalid declaration"


class FailingOperator(BaseOperator):
    """Fails with the errors of a declaration."""

    def __init__(self, *, error: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def execute(self, context: Context) -> None:
        """Fails the task.

        Raises:
            AirflowFailException: always; a retry cannot help.
        """
        from airflow.sdk.exceptions import AirflowFailException

        raise AirflowFailException(self.error)


def invalid_dag(dag_id: str, error: DeltaworksError, *, task_ids: Sequence[str], tags: Iterable[str] = ()) -> DAG:
    """Returns the placeholder for a DAG whose declaration is invalid.

    Args:
        task_ids: the tasks of the original DAG in order, or its main task: Airflow marks a running task as removed once
            its DAG no longer has it. Later tasks of a running run fail.
        tags: the tags of the original, in addition to its kind and subject.
    """
    name, kind = split_dag_id(dag_id)
    with DAG(
        **names.dag_name(dag_id),
        description=f"{name} has an invalid declaration and is not started until it is corrected",
        doc_md=invalid_runbook(dag_id, name, error),
        schedule=None,
        start_date=names.START_DATE,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(days=1),
        tags=sorted({TAG, name, kind, "manual", *tags}),
        default_args={"owner": "deltaworks"},
    ) as dag:
        limit = timedelta(minutes=1)
        chain(*(FailingOperator(task_id=task_id, error=str(error), execution_timeout=limit) for task_id in task_ids))
    return dag


def invalid_operation_dags(catalog: Catalog) -> Iterator[DAG]:
    """Yields the placeholders for operation DAGs of every pipeline and relay with an invalid declaration."""
    with_gold, with_mutations = catalog.invalid_pipelines("gold"), catalog.invalid_pipelines("mutations")
    with_feeds = catalog.invalid_pipelines("feeds")
    for name, error in catalog.invalid_pipelines().items():
        if not catalog.environment.has_operation_dags(name):
            continue
        for form in declared_forms(mutations=name in with_mutations, gold=name in with_gold, feeds=name in with_feeds):
            yield _invalid_form_dag(form, name, error, gold=name in with_gold)
    for name, error in catalog.invalid_relays().items():
        for form in relay_forms():
            yield _invalid_form_dag(form, name, error, gold=False)


def _invalid_form_dag(form: DagForm, name: str, error: DeltaworksError, *, gold: bool) -> DAG:
    return invalid_dag(
        form.dag_id(name),
        error,
        task_ids=form.task_ids(gold=gold),
        tags=("operation", *{operation.family for operation in form.operations}),
    )


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
