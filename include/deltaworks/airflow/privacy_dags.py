"""Builds the DAGs of each namespace of personal data: vault ingest, vault maintenance, erasure, and approval of
reveals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, chain

from deltaworks.airflow import names
from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.job_settings import job_dag_settings, manual_dag_settings, process_settings
from deltaworks.airflow.operation_dags import APPROVAL_BODY, is_not_dry_run, operation_task
from deltaworks.airflow.operation_forms import operation_form, set_form
from deltaworks.airflow.runbooks import namespace_runbook
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, DRY_RUN_GATE_TASK, Operation
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy_settings import VAULT_SCHEDULES

#: Scheduled runs process the waiting work. Manual runs follow their form, whose default is a dry run.
_DRY_RUN_UNLESS_SCHEDULED = "{{ params.dry_run if dag_run.run_type == 'manual' else False }}"
_AFTER_APPROVAL = (
    "The requester then runs `deltaworks privacy reveal` with `--approval {{ run_id }}`. No value is shown in Airflow."
)


def namespace_dags(namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec) -> Iterator[DAG]:
    """Yields the DAGs of a namespace.

    On a cluster the operations that open the vault are CronJobs with their own account, so only approvals are DAGs.
    """
    pipelines = tuple(pipelines)
    for operation in OPERATIONS.values():
        if operation.scope != "namespace":
            continue
        if operation.name not in VAULT_SCHEDULES:
            yield reveal_dag(operation, namespace, pipelines, environment)
        elif environment.kubernetes is None:
            yield scheduled_dag(operation, namespace, pipelines, environment)


def scheduled_dag(
    operation: Operation, namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec
) -> DAG:
    """Returns the scheduled DAG of a vault operation. Its manual runs have the operation's form."""
    pipelines = tuple(pipelines)
    schedule = VAULT_SCHEDULES[operation.name]
    with DAG(
        **names.dag_name(operation.dag_id(namespace)),
        description=operation.summary,
        doc_md=namespace_runbook(operation, namespace, pipelines),
        **job_dag_settings(
            _first_owner(pipelines),
            tags=("privacy", namespace),
            hours=schedule.hours,
            schedule=names.cron_timetable(schedule.cron),
        ),
    ) as dag:
        operation_task(
            operation.name, namespace, environment, values={"dry_run": _DRY_RUN_UNLESS_SCHEDULED}, from_form=True
        )
    set_form(dag, operation_form(operation))
    return dag


def reveal_dag(
    operation: Operation, namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec
) -> DAG:
    """Returns the DAG that asks for approval of a reveal. It does not open the vault."""
    pipelines = tuple(pipelines)
    share = environment.shares.of(operation.job_class)
    with DAG(
        **names.dag_name(operation.dag_id(namespace)),
        description=operation.summary,
        doc_md=namespace_runbook(operation, namespace, pipelines),
        **manual_dag_settings(namespace, _first_owner(pipelines), tags=("privacy",)),
    ) as dag:
        chain(
            operation_task(
                operation.name,
                namespace,
                environment,
                task_id=COUNT_TASK,
                values={"dry_run": True},
                from_form=True,
                execution_timeout=timedelta(hours=1),
            ),
            ShortCircuitOperator(task_id=DRY_RUN_GATE_TASK, python_callable=is_not_dry_run, **process_settings(share)),
            OperationApproval(
                task_id=APPROVE_TASK,
                subject=f"{operation.command} {namespace}?",
                body=APPROVAL_BODY + _AFTER_APPROVAL,
                operation=operation,
                spec=None,
                namespace=namespace,
                environment=environment,
                count_task_id=COUNT_TASK,
            ),
        )
    set_form(dag, operation_form(operation))
    return dag


def _first_owner(pipelines: Iterable[PipelineSpec]) -> str:
    """Returns the first of the owners of a namespace's pipelines, sorted by name."""
    return next(iter(sorted({spec.owner for spec in pipelines})), "deltaworks")
