"""One DAG per pipeline that keeps its tables healthy: mutations, OPTIMIZE, VACUUM, upkeep and gold in turn."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, BaseOperator, chain

from deltaworks.airflow import names
from deltaworks.airflow.gold_dags import rebuild_gold_task, table_choice
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.job_settings import process_settings
from deltaworks.airflow.mutation_dags import mutate_task, purge_task
from deltaworks.airflow.operators import ParamArgument, ProcessOperator
from deltaworks.airflow.optimize_dags import optimize_task, round_choice
from deltaworks.airflow.runbooks import maintenance_runbook
from deltaworks.airflow.vacuum_dags import DRY_RUN, short_vacuum_tasks, vacuum_params, vacuum_task
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

#: Deletes by the same switch as VACUUM.
_BY_SWITCH = f"{{{{ '--dry-run' if params.{DRY_RUN} else '--no-dry-run' }}}}"


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
            "round": round_choice(),
            **vacuum_params(spec),
        },
    ) as dag:
        steps = _steps(spec, environment)
        chain(*steps)
        vacuum = next(step for step in steps if step.task_id == "vacuum_tables")
        # A branch of its own: what follows VACUUM waits for nobody.
        chain(vacuum, *short_vacuum_tasks(spec, environment, ParamArgument("tables", "--tables")))
    return dag


def _steps(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    tables = ParamArgument("tables", "--tables")
    dry_run = ParamArgument(DRY_RUN, "--no-dry-run", when=False)
    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Before OPTIMIZE, which so finds what they left; the purge deletes by the same switch as VACUUM.
        steps.append(mutate_task(spec, environment, arguments=("--no-dry-run",)))
        steps.append(purge_task(spec, environment, dry_run))
    if spec.maintenance.optimize:
        steps.append(optimize_task(spec, environment, tables))
    steps.append(vacuum_task(spec, environment, tables))
    steps.append(_upkeep("remove_orphans", "deltaworks.maintenance.orphans", spec, _BY_SWITCH))
    steps.append(_upkeep("keep_control_tables", "deltaworks.maintenance.control_tables", spec, _BY_SWITCH))
    steps.append(_upkeep("learn_input", "deltaworks.maintenance.learn_norm", spec))
    steps.append(_upkeep("snapshot_health", "deltaworks.maintenance.table_health.record", spec, "--list-folders"))
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment))
    return steps


def _upkeep(task_id: str, module: str, spec: PipelineSpec, *arguments: str) -> ProcessOperator:
    """Upkeep that needs no Spark."""
    given = ["--pipeline", spec.pipeline, *arguments]
    return ProcessOperator(task_id=task_id, module=module, arguments=given, **process_settings())
