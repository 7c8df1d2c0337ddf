"""DAGs of pipelines and relays that are declared wrongly: they keep their place in Airflow, and say what is wrong.

Without them Airflow would show such a pipeline's DAGs as deactivated, with no reason; and a run under way could be
neither seen nor stopped there. They have no schedule and no form, and what a person triggers fails at once with the
mistakes. Once these are mended the DAGs are what they were, with the runs they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator, chain

from deltaworks.airflow import names
from deltaworks.airflow.operation_dags import pipeline_operations, relay_operations
from deltaworks.airflow.runbooks import invalid_runbook
from deltaworks.errors import DeltaworksError
from deltaworks.operations.base import Operation
from deltaworks.specs.catalog import Catalog

if TYPE_CHECKING:
    from airflow.sdk import Context

TAG: Final = "declared wrongly"


class FailingOperator(BaseOperator):
    """Fails with what is wrong with a declaration."""

    def __init__(self, *, error: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def execute(self, context: Context) -> None:
        """Refuse to run.

        Raises:
            AirflowFailException: always; no retry helps.
        """
        from airflow.sdk.exceptions import AirflowFailException

        raise AirflowFailException(self.error)


def invalid_dag(dag_id: str, error: DeltaworksError, *, task_ids: Sequence[str], tags: Iterable[str] = ()) -> DAG:
    """The DAG that stands for another while its declaration is wrong.

    Args:
        task_ids: the tasks of the other in their order, or the one that matters: Airflow takes a task that runs, and
            is no longer in its DAG, as removed. Those that come later in a run under way fail like all others.
        tags: by which people look for the other, besides its kind and its subject.
    """
    _, name = names.split_dag_id(dag_id)
    with DAG(
        dag_id=dag_id,
        description=f"{name} is declared wrongly: nothing starts it until that is mended",
        doc_md=invalid_runbook(dag_id, name, error),
        schedule=None,
        start_date=names.START_DATE,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(days=1),
        tags=sorted({TAG, name, dag_id.partition("__")[0], *tags}),
        default_args={"owner": "deltaworks"},
    ) as dag:
        limit = timedelta(minutes=1)
        chain(*(FailingOperator(task_id=task_id, error=str(error), execution_timeout=limit) for task_id in task_ids))
    return dag


def invalid_operation_dags(catalog: Catalog) -> Iterator[DAG]:
    """The DAGs that stand for those of operations, of every pipeline and relay that is declared wrongly."""
    with_gold, with_mutations = catalog.invalid_pipelines("gold"), catalog.invalid_pipelines("mutations")
    with_feeds = catalog.invalid_pipelines("feeds")
    for name, error in catalog.invalid_pipelines().items():
        if not catalog.environment.has_operation_dags(name):
            continue
        for declared in pipeline_operations(
            mutable=name in with_mutations, gold=name in with_gold, feeds=name in with_feeds
        ):
            yield _invalid_operation_dag(declared, name, error, gold=name in with_gold)
    for name, error in catalog.invalid_relays().items():
        for declared in relay_operations():
            yield _invalid_operation_dag(declared, name, error, gold=False)


def _invalid_operation_dag(declared: Operation, name: str, error: DeltaworksError, *, gold: bool) -> DAG:
    return invalid_dag(
        declared.dag_id(name),
        error,
        task_ids=declared.task_ids(gold=gold),
        tags=("operation", declared.family),
    )
