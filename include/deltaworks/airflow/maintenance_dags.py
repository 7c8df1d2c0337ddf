"""One DAG per pipeline that keeps its tables healthy: mutations, OPTIMIZE, VACUUM, upkeep and gold in turn."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, BaseOperator, Param, chain

from deltaworks.airflow import names
from deltaworks.airflow.gold_dags import rebuild_gold_task
from deltaworks.airflow.job_alerts import job_callbacks
from deltaworks.airflow.job_settings import job_settings
from deltaworks.airflow.operation_dags import operation_task
from deltaworks.airflow.operation_forms import operation_form
from deltaworks.airflow.runbooks import maintenance_runbook
from deltaworks.operations.registry import operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.pipeline import PipelineSpec

_TABLES = {"tables": "{{ (params.tables or []) | join(',') }}"}
#: Everything of a night that deletes goes by one switch.
_SWITCH = {"dry_run": "{{ params.vacuum_dry_run }}"}


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
        params=_form(spec),
    ) as dag:
        chain(*_steps(spec, environment))
    return dag


def _form(spec: PipelineSpec) -> dict[str, Param]:
    return {
        "tables": operation_form(operation("optimize_tables"), spec)["tables"],
        "round": Param(
            None,
            type=["null", "string"],
            enum=[None, "daily", "weekly"],
            title="Round of OPTIMIZE",
            description="weekly: with a second round; without it as declared for this weekday.",
        ),
        "vacuum_dry_run": Param(
            spec.maintenance.vacuum_dry_run,
            type="boolean",
            title="VACUUM dry run",
            description="Off: files that no retained version needs are deleted for good, orphans too.",
        ),
    }


def _steps(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    pipeline = spec.pipeline
    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Before OPTIMIZE, which then finds what they left.
        steps.append(operation_task("mutate_tables", pipeline, environment, values={"dry_run": False}))
        steps.append(operation_task("purge_deleted", pipeline, environment, values=_SWITCH))
    if spec.maintenance.optimize:
        steps.append(_optimize_task(spec, environment))
    steps.append(operation_task("vacuum_tables", pipeline, environment, values=_TABLES | _SWITCH))
    steps.append(operation_task("remove_orphans", pipeline, environment, values=_SWITCH))
    steps.append(operation_task("keep_control_tables", pipeline, environment, values=_SWITCH))
    steps.append(operation_task("learn_input", pipeline, environment))
    steps.append(operation_task("snapshot_health", pipeline, environment, values={"list_folders": True}))
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment))
    return steps


def _optimize_task(spec: PipelineSpec, environment: EnvironmentSpec) -> BaseOperator:
    """The task of OPTIMIZE. It ends by itself within the declared minutes; each try goes on where the last one was."""
    upkeep = spec.maintenance
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_on is not None else 0)
    return operation_task(
        "optimize_tables",
        spec.pipeline,
        environment,
        values={**_TABLES, "round": round_of_run(upkeep), "dry_run": False},
        # A command that has begun is allowed to finish, and tables are looked at first.
        **{**job_settings(), "execution_timeout": timedelta(minutes=minutes + 120)},
    )


def round_of_run(upkeep: MaintenanceSpec) -> str:
    """The round of a run, as a template: what its form says, or what is declared for the weekday it runs on."""
    weekly = f"dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_on}'"
    return f"{{{{ params.round or ('weekly' if {weekly} else 'daily') }}}}"
