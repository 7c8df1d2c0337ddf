"""Builds the scheduled DAGs: gold, models, maintenance and mutations of a pipeline, and the cleaning of buckets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, BaseOperator, Param, chain
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import alert_on_missed_deadline
from deltaworks.airflow.job_settings import job_dag_settings, process_settings
from deltaworks.airflow.night_summary import RecordNightOperator
from deltaworks.airflow.operation_dags import operation_task, rebuild_gold_task
from deltaworks.airflow.operation_forms import operation_form, optional_choice, set_form
from deltaworks.airflow.runbooks import (
    clean_runbook,
    gold_runbook,
    lost_events_runbook,
    maintenance_runbook,
    mutations_runbook,
    training_runbook,
)
from deltaworks.airflow.timetables import GoldTimetable
from deltaworks.operations.base import RESULTS_KEY
from deltaworks.operations.registry import get_operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec
from deltaworks.specs.schedules import schedules_enabled

#: A backfill run builds its own date, a manual run the dates of its form, and any other run the changed dates.
DATES_TEMPLATE = "{{ ds if dag_run.run_type == 'backfill' else (params.dates or '') }}"

#: Events are checked an hour after they were acknowledged. A shorter interval would not find more of them.
_LOST_EVENTS_SCHEDULE = "35 * * * *"
#: Scheduled runs and runs after another pipeline's gold mostly find no changes, so they first check without Spark.
#: Manual runs start Spark immediately, because a person usually triggers one to build something.
_IS_AUTOMATIC_RUN = "{{ dag_run.run_type in ('scheduled', 'asset_triggered') }}"


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that rebuilds a pipeline's gold tables.

    It runs on its schedule, manually, and after updates of other pipelines' gold tables that it reads.
    """
    with DAG(
        **names.dag_name(names.gold_dag_id(spec.pipeline)),
        description=f"Rebuilds the gold tables of {spec.pipeline}",
        doc_md=gold_runbook(spec),
        deadline=_deadline_alert(spec),
        **job_dag_settings(
            spec.owner,
            tags=("gold", spec.pipeline, *spec.tags),
            hours=6,
            run_types=names.GOLD_RUN_TYPES,
            schedule=_gold_schedule(spec, environment),
        ),
    ) as dag:
        rebuild_gold_task(
            spec, environment, from_form=True, values={"dates": DATES_TEMPLATE}, try_without_spark=_IS_AUTOMATIC_RUN
        )
    set_form(dag, operation_form(get_operation("rebuild_gold"), spec))
    return dag


def _deadline_alert(spec: PipelineSpec) -> DeadlineAlert | None:
    """Returns the alert for a run that misses its deadline.

    Airflow's scheduler raises it, so that it also covers runs that never started.
    """
    minutes = spec.gold.deadline_minutes
    if minutes is None:
        return None
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=minutes),
        callback=SyncCallback(
            alert_on_missed_deadline, {"dag_id": names.gold_dag_id(spec.pipeline), "minutes": minutes}
        ),
    )


def _gold_schedule(spec: PipelineSpec, environment: EnvironmentSpec) -> Any:
    """Returns the schedule: cron, updates of other pipelines' gold, or both; None for manual runs only."""
    timetable = _gold_timetable(spec.gold.schedule)
    if not spec.gold.cross_pipeline_inputs or not schedules_enabled():
        return timetable
    gold_assets = AssetAny(*(names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs))
    return gold_assets if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=gold_assets)


def _gold_timetable(expression: str | None) -> Any:
    if expression is None or not schedules_enabled():
        return None
    return GoldTimetable(expression, timezone="UTC", run_immediately=names.NO_IMMEDIATE_RUN)


_TABLES_OPTION = {"tables": "{{ (params.tables or []) | join(',') }}"}
#: One field of the form makes all deleting tasks dry runs.
_DRY_RUN_OPTION = {"dry_run": "{{ params.vacuum_dry_run }}"}
#: Scheduled runs apply requests. Manual runs follow their form, whose default is a dry run.
_DRY_RUN_UNLESS_SCHEDULED = "{{ params.dry_run if dag_run.run_type == 'manual' else False }}"


def maintenance_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's maintenance DAG. Its VACUUM cannot be undone, so it accepts no backfill."""
    with DAG(
        **names.dag_name(names.maintenance_dag_id(spec.pipeline)),
        description=f"OPTIMIZE, VACUUM and gold of {spec.pipeline}",
        doc_md=maintenance_runbook(spec),
        **job_dag_settings(
            spec.owner,
            tags=("maintenance", spec.pipeline, *spec.tags),
            hours=12,
            schedule=names.cron_timetable(spec.maintenance.schedule),
        ),
    ) as dag:
        chain(*_maintenance_tasks(spec, environment))
    set_form(dag, _maintenance_form(spec))
    return dag


def _maintenance_form(spec: PipelineSpec) -> dict[str, Param]:
    return {
        "tables": operation_form(get_operation("optimize_tables"), spec)["tables"],
        "round": optional_choice(
            ["daily", "weekly"],
            unset_label="(declared for this weekday)",
            title="Round of OPTIMIZE",
            description="weekly: adds a second round.",
        ),
        "vacuum_dry_run": Param(
            spec.maintenance.vacuum_dry_run,
            type="boolean",
            title="Only count",
            description="Dry run: files, orphans and rows that would be deleted are only counted.",
        ),
    }


def _maintenance_tasks(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    pipeline = spec.pipeline
    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Runs before OPTIMIZE, which then compacts the files that it wrote.
        steps.append(operation_task("mutate_tables", pipeline, environment, values={"dry_run": False}))
        steps.append(operation_task("purge_deleted", pipeline, environment, values=_DRY_RUN_OPTION))
    # Runs before OPTIMIZE, which then need not rewrite the deleted rows, and before VACUUM, which then includes the
    # files.
    steps.append(operation_task("expire_quarantine", pipeline, environment, values=_DRY_RUN_OPTION))
    if spec.maintenance.optimize:
        steps += _optimize_tasks(spec, environment)
    steps.append(operation_task("vacuum_tables", pipeline, environment, values=_TABLES_OPTION | _DRY_RUN_OPTION))
    steps.append(operation_task("remove_orphans", pipeline, environment, values=_DRY_RUN_OPTION))
    steps.append(operation_task("compact_control_tables", pipeline, environment, values=_DRY_RUN_OPTION))
    steps.append(operation_task("learn_input_rate", pipeline, environment))
    steps.append(operation_task("snapshot_health", pipeline, environment, values={"list_folders": True}))
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment, try_without_spark="True"))
    return [*steps, _record_night_task(pipeline, environment)]


def _record_night_task(pipeline: str, environment: EnvironmentSpec) -> BaseOperator:
    """Returns the teardown task that records the run. It runs last, also after failures, and does not change the run's
    state.
    """
    settings = process_settings(environment.shares.of("maintenance"))
    limit = {"execution_timeout": timedelta(minutes=5)}
    note = RecordNightOperator(
        task_id=names.RECORD_NIGHT_TASK, pipeline=pipeline, environment=environment, **settings | limit
    )
    note.as_teardown()
    return note


#: The partitions that the compaction task left to Spark. If it has no result, the Spark job runs.
_COMPACT_RESULTS = f"ti.xcom_pull(task_ids='compact_tables', key='{RESULTS_KEY}')"
_SPARK_PARTITIONS = f"({_COMPACT_RESULTS} | map(attribute='spark_work_count', default=1) | sum)"
_IS_SPARK_NEEDED = f"{{{{ {_COMPACT_RESULTS} is none or {_SPARK_PARTITIONS} > 0 }}}}"


def _optimize_tasks(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Returns the OPTIMIZE tasks: one that compacts small partitions without Spark, and a Spark job if any remain.

    Both end within the declared minutes. A retry continues where the last try stopped.
    """
    upkeep = spec.maintenance
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_day is not None else 0)
    values = {**_TABLES_OPTION, "round": round_template(upkeep), "dry_run": False}
    # An OPTIMIZE command that has started may finish, and measuring the tables takes time too.
    limit = timedelta(minutes=minutes + 120)
    return [
        operation_task(
            "optimize_tables",
            spec.pipeline,
            environment,
            task_id="compact_tables",
            as_process=True,
            values={**values, "spark": False},
            execution_timeout=limit,
        ),
        operation_task(
            "optimize_tables",
            spec.pipeline,
            environment,
            values=values,
            only_if=_IS_SPARK_NEEDED,
            execution_timeout=limit,
        ),
    ]


def round_template(upkeep: MaintenanceSpec) -> str:
    """Returns a template for the OPTIMIZE round, `daily` or `weekly`: the form's value, or else the one for the run's
    weekday.
    """
    weekly = f"dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_day}'"
    return f"{{{{ params.round or ('weekly' if {weekly} else 'daily') }}}}"


def mutation_dag(spec: PipelineSpec, declared: MutationsSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's mutation DAG. A run applies all waiting requests, so missed runs need no catch-up."""
    with DAG(
        **names.dag_name(names.mutation_dag_id(spec.pipeline)),
        description=f"Applies the requests of {spec.pipeline} to its tables",
        doc_md=mutations_runbook(spec, declared),
        **job_dag_settings(
            spec.owner,
            tags=("mutations", spec.pipeline, *spec.tags),
            hours=6,
            schedule=names.cron_timetable(declared.schedule),
        ),
    ) as dag:
        operation_task(
            "mutate_tables", spec.pipeline, environment, values={"dry_run": _DRY_RUN_UNLESS_SCHEDULED}, from_form=True
        )
    set_form(dag, operation_form(get_operation("mutate_tables"), spec))
    return dag


def training_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that trains a pipeline's models.

    A run trains on the data of its run time, so missed runs need no catch-up.
    """
    with DAG(
        **names.dag_name(names.training_dag_id(spec.pipeline)),
        description=f"Trains the models of {spec.pipeline}",
        doc_md=training_runbook(spec),
        **job_dag_settings(
            spec.owner,
            tags=("models", spec.pipeline, *spec.tags),
            hours=12,
            schedule=names.cron_timetable(spec.training.schedule),
        ),
    ) as dag:
        operation_task("train_model", spec.pipeline, environment, from_form=True, execution_timeout=timedelta(hours=11))
    set_form(dag, operation_form(get_operation("train_model"), spec))
    return dag


def lost_events_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that checks hourly whether the lake has all events that the pipeline's collectors
    acknowledged."""
    with DAG(
        **names.dag_name(get_operation("find_lost_events").dag_id(spec.pipeline)),
        description=f"Checks that every event collected for {spec.pipeline} is in its tables",
        doc_md=lost_events_runbook(spec),
        **job_dag_settings(
            spec.owner,
            tags=("maintenance", spec.pipeline, *spec.tags),
            hours=1,
            schedule=names.cron_timetable(_LOST_EVENTS_SCHEDULE),
        ),
    ) as dag:
        operation_task("find_lost_events", spec.pipeline, environment, from_form=True)
    set_form(dag, operation_form(get_operation("find_lost_events"), spec))
    return dag


def clean_dag(relay: RelaySpec, declared: CleanSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that deletes or archives objects that every pipeline has landed.

    Deletion cannot be undone, so it accepts no backfill.
    """
    with DAG(
        **names.dag_name(names.clean_dag_id(relay.relay)),
        description=(
            f"{declared.mode.capitalize()} objects of {', '.join(relay.buckets)} that all pipelines have landed"
        ),
        doc_md=clean_runbook(relay, declared),
        **job_dag_settings(
            relay.owner, tags=("maintenance", "relay"), hours=12, schedule=names.cron_timetable(declared.schedule)
        ),
    ) as dag:
        operation_task("clean_source", relay.relay, environment, from_form=True)
    set_form(dag, _clean_form(declared))
    return dag


def _clean_form(declared: CleanSpec) -> dict[str, Param]:
    """Returns the operation's form. The relay's `dry_run` is its default, which scheduled runs use."""
    form = operation_form(get_operation("clean_source"))
    dry_run = form["dry_run"]
    form["dry_run"] = Param(declared.dry_run, description=dry_run.description, **dry_run.schema)
    return form
