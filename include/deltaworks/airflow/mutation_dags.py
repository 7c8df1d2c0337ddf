"""One DAG per pipeline that applies mutation requests every few minutes, and the check of requests that wait."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.operation_dags import operation_task
from deltaworks.airflow.operation_forms import operation_form
from deltaworks.airflow.operators import ProcessOperator
from deltaworks.airflow.runbooks import mutations_runbook
from deltaworks.operations.registry import operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec

BACKLOG_MODULE = "deltaworks.mutations.backlog_check"
#: A scheduled run applies requests; one by hand does what its form says, which counts by default.
_DRY_RUN = "{{ params.dry_run if dag_run.run_type == 'manual' else False }}"


def mutation_dag(spec: PipelineSpec, declared: MutationsSpec, environment: EnvironmentSpec) -> DAG:
    """The mutation DAG of one pipeline. It works on what waits, so a missed run needs no catching up."""
    with DAG(
        dag_id=names.mutation_dag_id(spec.pipeline),
        description=f"Applies the requests of {spec.pipeline} to its tables",
        doc_md=mutations_runbook(spec, declared),
        schedule=names.cron(declared.schedule),
        catchup=False,
        max_active_runs=1,
        allowed_run_types=names.NO_BACKFILL,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(hours=6),
        tags=sorted({"mutations", spec.pipeline, *spec.tags}),
        default_args={"owner": spec.owner, **job_callbacks()},
        params=operation_form(operation("mutate_tables"), spec),
    ) as dag:
        operation_task("mutate_tables", spec.pipeline, environment, values={"dry_run": _DRY_RUN}, from_form=True)
    return dag


def judge_mutations_task() -> ProcessOperator:
    """The task that is red while requests of any pipeline wait for too long. The next run of its DAG is its retry."""
    return ProcessOperator(
        task_id="judge_mutations",
        module=BACKLOG_MODULE,
        retries=0,
        execution_timeout=timedelta(minutes=2),
        **job_callbacks(),
    )
