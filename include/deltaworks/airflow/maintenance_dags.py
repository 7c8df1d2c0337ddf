"""One DAG per pipeline that keeps its tables healthy: mutations, OPTIMIZE, VACUUM, upkeep and gold in turn."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, BaseOperator, Param, chain

from deltaworks.airflow import names
from deltaworks.airflow.gold_dags import job_settings, rebuild_gold_task, table_choice
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.mutation_dags import mutate_task, purge_task
from deltaworks.airflow.operators import ParamArgument, ProcessOperator, SparkJobOperator
from deltaworks.airflow.runbooks import maintenance_runbook
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec


def maintenance_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The maintenance DAG of one pipeline. VACUUM deletes for good, so a backfill is refused."""
    with DAG(
        dag_id=names.maintenance_dag_id(spec.pipeline),
        description=f"OPTIMIZE, VACUUM and gold of {spec.pipeline}",
        doc_md=maintenance_runbook(spec),
        schedule=names.cron(spec.maintenance.schedule),
        catchup=False,
        max_active_runs=1,
        allowed_run_types=names.NO_BACKFILL,
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(hours=12),
        tags=sorted({"maintenance", spec.pipeline, *spec.tags}),
        default_args={"owner": spec.owner, **job_callbacks()},
        params={
            "tables": table_choice([table.name for table in spec.tables], "Bronze tables to treat"),
            "vacuum_dry_run": Param(
                spec.maintenance.vacuum_dry_run,
                type="boolean",
                title="VACUUM lists only",
                description="Off: files that no retained version needs are deleted for good",
            ),
        },
    ) as dag:
        chain(*_steps(spec, environment))
    return dag


def _steps(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    tables = ParamArgument("tables", "--tables")
    dry_run = ParamArgument("vacuum_dry_run", "--no-dry-run", when=False)
    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Before OPTIMIZE, which so finds what they left; the purge deletes by the same switch as VACUUM.
        steps.append(mutate_task(spec, environment, arguments=("--no-dry-run",)))
        steps.append(purge_task(spec, environment, dry_run))
    if spec.maintenance.optimize:
        steps.append(_step("optimize_tables", spec, environment, tables))
    steps.append(_step("vacuum_tables", spec, environment, tables, dry_run))
    steps.append(_process("remove_orphans", "deltaworks.maintenance.orphans", spec))
    steps.append(_process("keep_control_tables", "deltaworks.maintenance.control_tables", spec))
    steps.append(_learn_input(spec))
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment))
    return steps


def _learn_input(spec: PipelineSpec) -> ProcessOperator:
    """The task that learns which silence of the source is unusual, for the health check."""
    settings = {name: value for name, value in job_settings().items() if name != "durable"}
    module, arguments = "deltaworks.maintenance.input_norm", ["--pipeline", spec.pipeline]
    return ProcessOperator(task_id="learn_input", module=module, arguments=arguments, **settings)


def _process(task_id: str, module: str, spec: PipelineSpec) -> ProcessOperator:
    """Upkeep that needs no Spark, and deletes by the same switch as VACUUM."""
    settings = {name: value for name, value in job_settings().items() if name != "durable"}
    return ProcessOperator(
        task_id=task_id,
        module=module,
        arguments=["--pipeline", spec.pipeline, "{{ '--dry-run' if params.vacuum_dry_run else '--no-dry-run' }}"],
        **settings,
    )


def _step(
    job: str, spec: PipelineSpec, environment: EnvironmentSpec, *param_arguments: ParamArgument
) -> SparkJobOperator:
    return SparkJobOperator(
        task_id=job,
        job=job,
        pipeline=spec.pipeline,
        environment=environment,
        param_arguments=param_arguments,
        **job_settings(),
    )
