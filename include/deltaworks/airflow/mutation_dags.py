"""One DAG per pipeline that applies mutation requests every few minutes, and the tasks others take from it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.job_settings import job_settings
from deltaworks.airflow.operators import ParamArgument, ProcessOperator, SparkJobOperator
from deltaworks.airflow.runbooks import mutation_runbook
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec

BACKLOG_MODULE = "deltaworks.mutations.backlog_check"


def mutation_dag(spec: PipelineSpec, declared: MutationsSpec, environment: EnvironmentSpec) -> DAG:
    """The mutation DAG of one pipeline. It works on what waits, so a missed run needs no catching up."""
    with DAG(
        dag_id=names.mutation_dag_id(spec.pipeline),
        description=f"Applies the requests of {spec.pipeline} to its tables",
        doc_md=mutation_runbook(spec, declared),
        schedule=names.cron(declared.schedule),
        catchup=False,
        max_active_runs=1,
        allowed_run_types=names.NO_BACKFILL,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(hours=6),
        tags=sorted({"mutations", spec.pipeline, *spec.tags}),
        default_args={"owner": spec.owner, **job_callbacks()},
        params={
            "dry_run": Param(
                False,
                type="boolean",
                title="Report only",
                description="On: says what would be touched, and changes nothing",
            ),
            "org": Param(
                "",
                type="string",
                title="One organisation",
                description="Its requests alone, ahead of all others; empty for all that wait",
            ),
        },
    ) as dag:
        mutate_task(
            spec,
            environment,
            ParamArgument("org", "--org"),
            ParamArgument("dry_run", "--no-dry-run", when=False),
        )
    return dag


def mutate_task(
    spec: PipelineSpec,
    environment: EnvironmentSpec,
    *param_arguments: ParamArgument,
    arguments: tuple[str, ...] = (),
) -> SparkJobOperator:
    """The task that applies requests. Every try completes what the one before left half done."""
    return SparkJobOperator(
        task_id="mutate_tables",
        job="mutate_tables",
        pipeline=spec.pipeline,
        environment=environment,
        arguments=arguments,
        param_arguments=param_arguments,
        **job_settings(),
    )


def purge_task(spec: PipelineSpec, environment: EnvironmentSpec, dry_run: ParamArgument) -> SparkJobOperator:
    """The task that removes rows which were deleted long ago."""
    return SparkJobOperator(
        task_id="purge_deleted",
        job="purge_deleted",
        pipeline=spec.pipeline,
        environment=environment,
        param_arguments=(dry_run,),
        **job_settings(),
    )


def judge_mutations_task() -> ProcessOperator:
    """The task that is red while requests of any pipeline wait for too long. The next run of its DAG is its retry."""
    return ProcessOperator(
        task_id="judge_mutations",
        module=BACKLOG_MODULE,
        retries=0,
        execution_timeout=timedelta(minutes=2),
        **job_callbacks(),
    )
