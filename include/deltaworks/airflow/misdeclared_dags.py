"""DAGs of pipelines and relays that are declared wrongly: they keep their place in Airflow, and say what is wrong.

Without them Airflow would show such a pipeline's DAGs as deactivated, with no reason; and a run under way could be
neither seen nor stopped there. They have no schedule, and the one task that a person may trigger fails with the
mistakes. Once these are mended the DAGs are what they were.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator

from deltaworks.airflow import names
from deltaworks.airflow.runbooks import misdeclared_runbook
from deltaworks.errors import DeltaworksError

if TYPE_CHECKING:
    from airflow.sdk import Context

TAG: Final = "declared wrongly"


class RefusedOperator(BaseOperator):
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


def misdeclared_dag(dag_id: str, error: DeltaworksError, *, task_id: str) -> DAG:
    """The DAG that stands for another while its declaration is wrong.

    Args:
        task_id: a task of the other: one that runs stays this DAG's.
    """
    _, name = names.named_in(dag_id)
    with DAG(
        dag_id=dag_id,
        description=f"{name} is declared wrongly: nothing starts it until that is mended",
        doc_md=misdeclared_runbook(dag_id, name, error),
        schedule=None,
        start_date=names.START_DATE,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(days=1),
        tags=sorted({TAG, name, dag_id.partition("__")[0]}),
        default_args={"owner": "deltaworks"},
    ) as dag:
        RefusedOperator(task_id=task_id, error=str(error), execution_timeout=timedelta(minutes=1))
    return dag
