"""The DAGs on a schedule: gold, models, maintenance and mutations of a pipeline, and the cleaning of buckets."""

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

#: A backfilled run builds its own date, a run by hand those of its form, and any other what has changed.
DATES_TEMPLATE = "{{ ds if dag_run.run_type == 'backfill' else (params.dates or '') }}"

#: What was taken is looked for an hour later, so more often finds nothing more.
_LOST_EVENTS_SCHEDULE = "35 * * * *"
#: Most runs of a schedule, and some that follow another pipeline's gold, find nothing new; one by hand mostly has its
#: reason.
_IS_AUTOMATIC_RUN = "{{ dag_run.run_type in ('scheduled', 'asset_triggered') }}"


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that rebuilds a pipeline's gold tables, on schedule, by hand, and whenever gold of other pipelines that
    they read was built."""
    with DAG(
        dag_id=names.gold_dag_id(spec.pipeline),
        description=f"Rebuilds the gold tables of {spec.pipeline}",
        doc_md=gold_runbook(spec),
        schedule=_gold_schedule(spec, environment),
        deadline=_deadline_alert(spec),
        **job_dag_settings(
            spec.owner, tags=("gold", spec.pipeline, *spec.tags), hours=6, run_types=names.GOLD_RUN_TYPES
        ),
    ) as dag:
        rebuild_gold_task(
            spec, environment, from_form=True, values={"dates": DATES_TEMPLATE}, try_without_spark=_IS_AUTOMATIC_RUN
        )
    set_form(dag, operation_form(get_operation("rebuild_gold"), spec))
    return dag


def _deadline_alert(spec: PipelineSpec) -> DeadlineAlert | None:
    """The alert of a run that has not ended in time. Airflow's scheduler sees it, also of a run that never started."""
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
    """By the clock, after any gold table of another pipeline that is read, or both; None for by hand only."""
    timetable = _gold_timetable(spec.gold.schedule)
    if not spec.gold.cross_pipeline_inputs or not schedules_enabled():
        return timetable
    others = AssetAny(*(names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs))
    return others if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=others)


def _gold_timetable(expression: str | None) -> Any:
    if expression is None or not schedules_enabled():
        return None
    return GoldTimetable(expression, timezone="UTC", run_immediately=names.NO_IMMEDIATE_RUN)


_TABLES_OPTION = {"tables": "{{ (params.tables or []) | join(',') }}"}
#: Everything of a night that deletes goes by one switch.
_DRY_RUN_OPTION = {"dry_run": "{{ params.vacuum_dry_run }}"}
#: A scheduled run applies requests; one by hand does what its form says, which counts by default.
_DRY_RUN_UNLESS_SCHEDULED = "{{ params.dry_run if dag_run.run_type == 'manual' else False }}"


def maintenance_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The maintenance DAG of one pipeline. VACUUM deletes for good, so a backfill is refused."""
    with DAG(
        dag_id=names.maintenance_dag_id(spec.pipeline),
        description=f"OPTIMIZE, VACUUM and gold of {spec.pipeline}",
        doc_md=maintenance_runbook(spec),
        schedule=names.cron_timetable(spec.maintenance.schedule),
        **job_dag_settings(spec.owner, tags=("maintenance", spec.pipeline, *spec.tags), hours=12),
    ) as dag:
        chain(*_maintenance_tasks(spec, environment))
    set_form(dag, _maintenance_form(spec))
    return dag


def _maintenance_form(spec: PipelineSpec) -> dict[str, Param]:
    return {
        "tables": operation_form(get_operation("optimize_tables"), spec)["tables"],
        "round": optional_choice(
            ["daily", "weekly"],
            unset_label="(as declared for this weekday)",
            title="Round of OPTIMIZE",
            description="weekly: with a second round.",
        ),
        "vacuum_dry_run": Param(
            spec.maintenance.vacuum_dry_run,
            type="boolean",
            title="Only count",
            description="On: files, orphans and rows that would be deleted are only counted.",
        ),
    }


def _maintenance_tasks(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    pipeline = spec.pipeline
    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Before OPTIMIZE, which then finds what they left.
        steps.append(operation_task("mutate_tables", pipeline, environment, values={"dry_run": False}))
        steps.append(operation_task("purge_deleted", pipeline, environment, values=_DRY_RUN_OPTION))
    # Before OPTIMIZE, which then rewrites none of it, and VACUUM, which then counts it.
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
    """What keeps the night comes last however it went, and leaves the run as the others made it."""
    settings = process_settings(environment.shares.of("maintenance"))
    limit = {"execution_timeout": timedelta(minutes=5)}
    note = RecordNightOperator(
        task_id=names.RECORD_NIGHT_TASK, pipeline=pipeline, environment=environment, **settings | limit
    )
    note.as_teardown()
    return note


#: The partitions that the task before has left to Spark; where it says nothing, Spark looks itself.
_COMPACT_RESULTS = f"ti.xcom_pull(task_ids='compact_tables', key='{RESULTS_KEY}')"
_IS_SPARK_NEEDED = f"{{{{ {_COMPACT_RESULTS} is none or ({_COMPACT_RESULTS} | map(attribute='spark_required', default=1) | sum) > 0 }}}}"


def _optimize_tasks(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """The tasks of OPTIMIZE: small partitions in a process, then the rest by Spark, where there is any.

    They end within the declared minutes; a retry continues where the last one was.
    """
    upkeep = spec.maintenance
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_day is not None else 0)
    values = {**_TABLES_OPTION, "round": round_template(upkeep), "dry_run": False}
    # A command that has begun is allowed to finish, and tables are looked at first.
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
    """The round of a run, as a template: what its form says, or what is declared for the weekday it runs on."""
    weekly = f"dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_day}'"
    return f"{{{{ params.round or ('weekly' if {weekly} else 'daily') }}}}"


def mutation_dag(spec: PipelineSpec, declared: MutationsSpec, environment: EnvironmentSpec) -> DAG:
    """The mutation DAG of one pipeline. It works on what waits, so a missed run needs no catching up."""
    with DAG(
        dag_id=names.mutation_dag_id(spec.pipeline),
        description=f"Applies the requests of {spec.pipeline} to its tables",
        doc_md=mutations_runbook(spec, declared),
        schedule=names.cron_timetable(declared.schedule),
        **job_dag_settings(spec.owner, tags=("mutations", spec.pipeline, *spec.tags), hours=6),
    ) as dag:
        operation_task(
            "mutate_tables", spec.pipeline, environment, values={"dry_run": _DRY_RUN_UNLESS_SCHEDULED}, from_form=True
        )
    set_form(dag, operation_form(get_operation("mutate_tables"), spec))
    return dag


def training_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that trains a pipeline's models. A run is as of when it runs, so a missed one needs no catching up."""
    with DAG(
        dag_id=names.training_dag_id(spec.pipeline),
        description=f"Trains the models of {spec.pipeline}",
        doc_md=training_runbook(spec),
        schedule=names.cron_timetable(spec.training.schedule),
        **job_dag_settings(spec.owner, tags=("models", spec.pipeline, *spec.tags), hours=12),
    ) as dag:
        operation_task("train_model", spec.pipeline, environment, from_form=True, execution_timeout=timedelta(hours=11))
    set_form(dag, operation_form(get_operation("train_model"), spec))
    return dag


def lost_events_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that looks every hour for events which a collector of the pipeline acknowledged and that are nowhere."""
    with DAG(
        dag_id=get_operation("find_lost_events").dag_id(spec.pipeline),
        description=f"Whether every event collected for {spec.pipeline} is in its tables",
        doc_md=lost_events_runbook(spec),
        schedule=names.cron_timetable(_LOST_EVENTS_SCHEDULE),
        **job_dag_settings(spec.owner, tags=("maintenance", spec.pipeline, *spec.tags), hours=1),
    ) as dag:
        operation_task("find_lost_events", spec.pipeline, environment, from_form=True)
    set_form(dag, operation_form(get_operation("find_lost_events"), spec))
    return dag


def clean_dag(relay: RelaySpec, declared: CleanSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG that deletes or archives what every pipeline has landed. It deletes for good, so no backfill."""
    with DAG(
        dag_id=names.clean_dag_id(relay.relay),
        description=f"Objects of {', '.join(relay.buckets)} that have landed everywhere: {declared.mode}",
        doc_md=clean_runbook(relay, declared),
        schedule=names.cron_timetable(declared.schedule),
        **job_dag_settings(relay.owner, tags=("maintenance", "relay"), hours=12),
    ) as dag:
        operation_task("clean_source", relay.relay, environment, from_form=True)
    set_form(dag, _clean_form(declared))
    return dag


def _clean_form(declared: CleanSpec) -> dict[str, Param]:
    """The form of the operation; a run on schedule does what the relay declares."""
    form = operation_form(get_operation("clean_source"))
    dry_run = form["dry_run"]
    form["dry_run"] = Param(declared.dry_run, description=dry_run.description, **dry_run.schema)
    return form
