"""The DAGs of each namespace of personal data: its vault is filled, kept, and opened once people have approved it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, chain

from deltaworks.airflow import names
from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.job_settings import by_hand_only, job_dag_settings, process_settings
from deltaworks.airflow.operation_dags import APPROVAL_BODY, is_requested, operation_task
from deltaworks.airflow.operation_forms import operation_form, set_form
from deltaworks.airflow.runbooks import erase_runbook, reveal_runbook, vault_runbook, vault_upkeep_runbook
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, REQUESTED_TASK
from deltaworks.operations.registry import operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

_FILL_SCHEDULE = "*/5 * * * *"
_ERASE_SCHEDULE = "40 * * * *"
#: Rotation is monthly, and days end daily: a run finds mostly nothing to do.
_KEEP_SCHEDULE = "25 3 * * *"
#: A scheduled run does what waits; one by hand does what its form says, which counts by default.
_DRY_RUN = "{{ params.dry_run if dag_run.run_type == 'manual' else False }}"
_APPROVED = (
    "The person who asks then runs `deltaworks privacy reveal` with `--approval {{ run_id }}`: no value gets here."
)


def vault_dag(namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """The DAG that takes in what was sealed. What waits is taken by the next run, so nothing is caught up."""
    declared = operation("fill_vault")
    pipelines = tuple(pipelines)
    with DAG(
        dag_id=declared.dag_id(namespace),
        description=f"Takes what was sealed of {namespace} into the vault",
        doc_md=vault_runbook(namespace, pipelines),
        schedule=names.cron(_FILL_SCHEDULE),
        **job_dag_settings(_owner(pipelines), tags=("privacy", namespace), hours=1),
    ) as dag:
        operation_task(declared.name, namespace, environment, values={"dry_run": _DRY_RUN}, from_form=True)
    set_form(dag, operation_form(declared))
    return dag


def vault_upkeep_dag(namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """The DAG that rotates keys where it is due, destroys those of days that are over, and compacts tables."""
    declared = operation("keep_vault")
    pipelines = tuple(pipelines)
    with DAG(
        dag_id=declared.dag_id(namespace),
        description=f"Rotates and destroys keys of the vault of {namespace}, and compacts its tables",
        doc_md=vault_upkeep_runbook(namespace, pipelines),
        schedule=names.cron(_KEEP_SCHEDULE),
        **job_dag_settings(_owner(pipelines), tags=("privacy", "maintenance", namespace), hours=6),
    ) as dag:
        operation_task(declared.name, namespace, environment, values={"dry_run": _DRY_RUN}, from_form=True)
    set_form(dag, operation_form(declared))
    return dag


def erase_dag(namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """The DAG that brings requests to be erased on; rows are taken out in its runs of the night."""
    declared = operation("erase")
    pipelines = tuple(pipelines)
    with DAG(
        dag_id=declared.dag_id(namespace),
        description=f"Erases people who asked for it from {namespace}, with a certificate for each",
        doc_md=erase_runbook(namespace, pipelines),
        schedule=names.cron(_ERASE_SCHEDULE),
        **job_dag_settings(_owner(pipelines), tags=("privacy", namespace), hours=6),
    ) as dag:
        operation_task(declared.name, namespace, environment, values={"dry_run": _DRY_RUN}, from_form=True)
    set_form(dag, operation_form(declared))
    return dag


def reveal_dag(namespace: str, pipelines: Iterable[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """The DAG that asks people whether a reveal may be made. It opens nothing itself."""
    declared = operation("reveal")
    pipelines = tuple(pipelines)
    share = environment.shares.of(declared.job_class)
    with DAG(
        dag_id=declared.dag_id(namespace),
        description=declared.summary,
        doc_md=reveal_runbook(namespace, pipelines),
        **by_hand_only(namespace, _owner(pipelines), tags=("privacy",)),
    ) as dag:
        chain(
            operation_task(
                declared.name,
                namespace,
                environment,
                task_id=COUNT_TASK,
                values={"dry_run": True},
                from_form=True,
                execution_timeout=timedelta(hours=1),
            ),
            ShortCircuitOperator(task_id=REQUESTED_TASK, python_callable=is_requested, **process_settings(share)),
            OperationApproval(
                task_id=APPROVE_TASK,
                subject=f"{declared.command} {namespace}?",
                body=APPROVAL_BODY + _APPROVED,
                operation=declared,
                spec=None,
                namespace=namespace,
                environment=environment,
                counted_by=COUNT_TASK,
            ),
        )
    set_form(dag, operation_form(declared))
    return dag


def _owner(pipelines: Iterable[PipelineSpec]) -> str:
    """Who is named first among the owners of a namespace's pipelines."""
    return next(iter(sorted({spec.owner for spec in pipelines})), "deltaworks")
