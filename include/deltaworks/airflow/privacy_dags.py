"""Builds the DAGs of each namespace of personal data: the vault, erasure, and approval of reveals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, chain

from deltaworks.airflow import names
from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.job_settings import process_settings
from deltaworks.airflow.operation_dags import (
    DRY_RUN_IF_MANUAL,
    form_dag,
    form_params,
    is_not_dry_run,
    operation_task,
    selection_template,
    set_form,
)
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, DRY_RUN_GATE_TASK
from deltaworks.operations.dag_forms import DagForm, dag_forms
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import VAULT_SCHEDULES

#: Steps that do not run in every scheduled run of their DAG. Most runs of the vault's maintenance have nothing to do.
#: All runs of the hour include it, in case the first one is missed.
_SCHEDULED_IF: Final[Mapping[str, str]] = {
    "maintain_vault": "dag_run.run_type == 'manual' or dag_run.run_after.hour == 3"
}
#: Steps that start in the triggerer, since most runs of the DAG have no work for them.
_LOOK_IF: Final[Mapping[str, str]] = {
    "ingest_vault": "{{ dag_run.run_type == 'scheduled' }}",
    **dict.fromkeys(_SCHEDULED_IF, "False"),
}
_AFTER_APPROVAL = (
    " The requester then runs `deltaworks privacy reveal` with `--approval {{ run_id }}`. No value is shown in Airflow."
)


def namespace_dags(catalog: Catalog) -> Iterator[DAG]:
    """Yields the DAGs of all namespaces, if the environment has a vault.

    On a cluster the operations that open the vault are CronJobs with their own account, so only approvals are DAGs.
    """
    environment = catalog.environment
    if environment.privacy is None:
        return
    for form in dag_forms(one for one in OPERATIONS.values() if one.scope == "namespace"):
        for namespace, pipelines in catalog.namespaces.items():
            if form.operations[0].name not in VAULT_SCHEDULES:
                yield reveal_dag(form, namespace, pipelines, environment)
            elif environment.kubernetes is None:
                yield vault_dag(form, namespace, pipelines, environment)


def vault_dag(form: DagForm, namespace: str, pipelines: Sequence[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """Returns the scheduled DAG of operations on the vault, in registry order, with the schedule of the first."""
    schedules = [VAULT_SCHEDULES[operation.name] for operation in form.operations]
    with form_dag(
        form,
        namespace,
        tags=("privacy",),
        timeout=timedelta(hours=max(schedule.hours for schedule in schedules)),
        schedule=names.cron_timetable(schedules[0].cron),
        **_ownership(form, pipelines),
    ) as dag:
        chain(
            *(
                operation_task(
                    operation.name,
                    namespace,
                    environment,
                    values={"dry_run": DRY_RUN_IF_MANUAL},
                    form=form,
                    trigger_rule="none_failed",
                    selected_if=_selected_if(form, operation.name),
                    look_if=_LOOK_IF.get(operation.name, ""),
                )
                for operation in form.operations
            )
        )
    set_form(dag, form_params(form))
    return dag


def _selected_if(form: DagForm, name: str) -> str:
    selected = selection_template(OPERATIONS[name], form)
    condition = _SCHEDULED_IF.get(name)
    return selected if condition is None else f"{{{{ ({condition}) and ({selected.strip('{} ')}) }}}}"


def reveal_dag(form: DagForm, namespace: str, pipelines: Sequence[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that asks for approval of a reveal. It does not open the vault."""
    (operation,) = form.operations
    settings = process_settings(environment.shares, operation.job_class)
    with form_dag(form, namespace, tags=("privacy",), **_ownership(form, pipelines)) as dag:
        chain(
            operation_task(
                operation.name,
                namespace,
                environment,
                task_id=COUNT_TASK,
                values={"dry_run": True},
                form=form,
                execution_timeout=timedelta(hours=1),
            ),
            ShortCircuitOperator(task_id=DRY_RUN_GATE_TASK, python_callable=is_not_dry_run, **settings),
            OperationApproval(
                task_id=APPROVE_TASK,
                subject=f"{operation.command} {namespace}?",
                after_approval=_AFTER_APPROVAL,
                form=form,
                spec=None,
                namespace=namespace,
                environment=environment,
                count_task_id=COUNT_TASK,
            ),
        )
    set_form(dag, form_params(form))
    return dag


def _ownership(form: DagForm, pipelines: Sequence[PipelineSpec]) -> dict[str, Any]:
    """Returns the DAG's owner, the first of the pipelines' owners, and the context of its runbook, with all of them."""
    owners = sorted({spec.owner for spec in pipelines}) or ["deltaworks"]
    operations = {operation.name: operation for operation in form.operations}
    return {
        "owner": owners[0],
        "context": {"owner": ", ".join(owners), "pipelines": pipelines, "operations": operations},
    }
