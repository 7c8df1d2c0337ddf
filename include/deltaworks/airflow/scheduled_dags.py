"""Builds the scheduled DAGs: gold, models and mutations of a pipeline, and the cleaning of buckets.

The timetable of gold DAGs is a cron expression, with one run per date for backfills. Maintenance has a module of its
own, `maintenance_dags`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, Param
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.timetables.base import DagRunInfo, DataInterval
from airflow.timetables.trigger import CronTriggerTimetable

from deltaworks.airflow import names
from deltaworks.airflow.dag_factory import DagKind, scheduled_dag
from deltaworks.airflow.job_alerts import alert_on_missed_deadline
from deltaworks.airflow.operation_dags import (
    DRY_RUN_IF_MANUAL,
    form_params,
    operation_task,
    rebuild_gold_task,
    set_form,
)
from deltaworks.operations.base import ENGINE_OPTION
from deltaworks.operations.dag_forms import DRY_RUN, DagForm, form_of
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceEngine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec
from deltaworks.specs.schedules import schedules_enabled

if TYPE_CHECKING:
    from airflow.timetables.base import TimeRestriction


#: Offset of a backfill run's logical date. Airflow allows one run per logical date, and a scheduled run may have
#: midnight. Cron expressions have no seconds, so no scheduled run has this offset.
_OFFSET_INTO_DATE = timedelta(seconds=1)
_DAY = timedelta(days=1)


class GoldTimetable(CronTriggerTimetable):
    """Timetable with a cron expression for scheduled runs. Backfills have one run per date, with any expression.

    The command `airflow backfill create --from-date A --to-date B` creates one run for each complete date from A to B.
    If the DAG itself has no catch-up, Airflow calls a timetable with `catchup` only for backfills. Where schedules are
    disabled there are only backfills.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Returns the next run, or the next date of a backfill."""
        if not restriction.catchup and not schedules_enabled():
            return None
        if not restriction.catchup:
            return super().next_dagrun_info(
                last_automated_data_interval=last_automated_data_interval, restriction=restriction
            )
        if last_automated_data_interval is not None:
            date = last_automated_data_interval.start.start_of("day") + _DAY
        elif restriction.earliest is not None:
            date = restriction.earliest.start_of("day")
        else:
            return None
        if restriction.latest is not None and date > restriction.latest:
            return None
        # Airflow names a run by `run_after`, so that is within the date. Airflow itself excludes incomplete dates.
        return DagRunInfo(
            run_after=date + _OFFSET_INTO_DATE, data_interval=DataInterval(date + _OFFSET_INTO_DATE, date + _DAY)
        )


#: A backfill run builds its own date, a manual run the dates of its form, and any other run the changed dates.
DATES_TEMPLATE = "{{ ds if dag_run.run_type == 'backfill' else (params.dates or '') }}"

#: Events are checked an hour after they were acknowledged. A shorter interval would not find more of them.
_LOST_EVENTS_SCHEDULE = "35 * * * *"
#: Scheduled runs and runs after another pipeline's gold mostly find no changes, so they look first without Spark.
#: Manual runs start Spark immediately, because a person usually triggers one to build something.
_GOLD_ENGINE = "{{ 'auto' if dag_run.run_type in ('scheduled', 'asset_triggered') else 'spark' }}"
_LOOK_ON_SCHEDULE = "{{ dag_run.run_type == 'scheduled' }}"
_LOOK_AT_GOLD = "{{ dag_run.run_type in ('scheduled', 'asset_triggered') }}"


def pipeline_dag(spec: PipelineSpec, kind: str, *, tag: str = "", **settings: Any) -> DAG:
    """Returns a scheduled DAG of a pipeline, without its tasks."""
    tags = (tag or kind, spec.pipeline, *spec.tags)
    return scheduled_dag(spec.pipeline, kind, owner=spec.owner, tags=tags, context={"spec": spec}, **settings)


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that rebuilds a pipeline's gold tables.

    It runs on its schedule, manually, and after updates of other pipelines' gold tables that it reads.
    """
    with pipeline_dag(
        spec,
        "gold",
        description=f"Rebuilds the gold tables of {spec.pipeline}",
        deadline=_deadline_alert(spec),
        timeout=timedelta(hours=6),
        run_types=names.GOLD_RUN_TYPES,
        schedule=_gold_schedule(spec, environment),
    ) as dag:
        form = form_of(get_operation("rebuild_gold"))
        rebuild_gold_task(
            spec,
            environment,
            form=form,
            values={"dates": DATES_TEMPLATE},
            engine=_GOLD_ENGINE,
            look_if=_LOOK_AT_GOLD,
        )
        for name in ("refresh_gold", "verify_gold"):
            operation_task(name, spec.pipeline, environment, form=form, look_if="False")
    set_form(dag, form_params(form, spec))
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
        callback=SyncCallback(alert_on_missed_deadline, {"dag_id": dag_id(spec.pipeline, "gold"), "minutes": minutes}),
    )


def _gold_schedule(spec: PipelineSpec, environment: EnvironmentSpec) -> Any:
    """Returns the schedule: cron, updates of other pipelines' gold, or both; None for manual runs only."""
    timetable = _gold_timetable(spec.gold.schedule)
    if not spec.gold.cross_pipeline_inputs or not schedules_enabled():
        return timetable
    gold_assets = AssetAny(*(names.gold_asset(environment.lake, *other) for other in spec.gold.cross_pipeline_inputs))
    return gold_assets if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=gold_assets)


def _gold_timetable(expression: str | None) -> Any:
    if expression is None:
        return None
    return GoldTimetable(expression, timezone="UTC", run_immediately=names.NO_IMMEDIATE_RUN)


def _operation_dag(
    spec: PipelineSpec,
    name: str,
    environment: EnvironmentSpec,
    *,
    task: Mapping[str, Any] | None = None,
    **settings: Any,
) -> DAG:
    """Returns a scheduled DAG of a pipeline with one task, which runs an operation.

    Args:
        task: further arguments of the task.
        settings: further arguments of the DAG.
    """
    form = form_of(get_operation(name))
    with pipeline_dag(spec, form.kind, **settings) as dag:
        operation_task(name, spec.pipeline, environment, form=form, **(task or {}))
    params = form_params(form, spec)
    # The declaration says what does the work, and not the form of a run.
    params.pop(ENGINE_OPTION, None)
    set_form(dag, params)
    return dag


def declared_engine(spec: PipelineSpec, environment: EnvironmentSpec) -> MaintenanceEngine:
    """Returns what does the work of a pipeline's maintenance: as the pipeline declares, or else the environment."""
    return spec.maintenance_on or environment.maintenance_on


def mutation_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's mutation DAG. A run applies all waiting requests, so missed runs need no catch-up.

    A submitted job opens a Spark session only for a batch that needs it. Where not every job is to be submitted, a
    process applies small batches, and a job only the others.
    """
    assert spec.mutations is not None
    engine = "spark" if declared_engine(spec, environment) == "spark" else "process"
    return _operation_dag(
        spec,
        "mutate_tables",
        environment,
        task={
            "values": {"dry_run": DRY_RUN_IF_MANUAL, ENGINE_OPTION: True},
            "look_if": _LOOK_ON_SCHEDULE,
            "engine": engine,
        },
        description=f"Applies the requests of {spec.pipeline} to its tables",
        timeout=timedelta(hours=6),
        schedule=names.cron_timetable(spec.mutations.schedule),
    )


def training_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that trains a pipeline's models.

    A run trains on the data of its run time, so missed runs need no catch-up.
    """
    return _operation_dag(
        spec,
        "train_model",
        environment,
        task={"execution_timeout": timedelta(hours=11)},
        description=f"Trains the models of {spec.pipeline}",
        timeout=timedelta(hours=12),
        schedule=names.cron_timetable(spec.training.schedule),
    )


def lost_events_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that checks hourly whether the lake has all events that the pipeline's collectors
    acknowledged."""
    return _operation_dag(
        spec,
        "find_lost_events",
        environment,
        tag="maintenance",
        description=f"Checks that every event collected for {spec.pipeline} is in its tables",
        timeout=timedelta(hours=1),
        schedule=names.cron_timetable(_LOST_EVENTS_SCHEDULE),
    )


def clean_dag(relay: RelaySpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that deletes or archives objects that every pipeline has landed.

    Deletion cannot be undone, so it accepts no backfill.
    """
    declared = relay.clean
    assert declared is not None
    form = form_of(get_operation("clean_source"))
    with scheduled_dag(
        relay.relay,
        "clean",
        description=(
            f"{declared.mode.capitalize()} objects of {', '.join(relay.buckets)} that all pipelines have landed"
        ),
        owner=relay.owner,
        tags=("maintenance", "relay"),
        timeout=timedelta(hours=12),
        schedule=names.cron_timetable(declared.schedule),
        context={"spec": relay},
    ) as dag:
        operation_task("clean_source", relay.relay, environment, form=form)
    set_form(dag, _clean_params(form, declared))
    return dag


def _clean_params(form: DagForm, declared: CleanSpec) -> dict[str, Param]:
    """Returns the params of the form. The relay's `dry_run` is the default, which scheduled runs use."""
    params = form_params(form)
    dry_run = params[DRY_RUN]
    return params | {DRY_RUN: Param(declared.dry_run, description=dry_run.description, **dry_run.schema)}


def _collected_pipelines(catalog: Catalog) -> list[PipelineSpec]:
    """Returns the pipelines to which a collector sends events."""
    collected = {source.pipeline for spec in catalog.collectors.values() for source in spec.sources.values()}
    return [spec for name, spec in catalog.pipelines.items() if name in collected]


GOLD: Final = DagKind(
    kind="gold",
    subjects=lambda catalog: [spec for spec in catalog.pipelines.values() if spec.gold.tables],
    build=gold_dag,
    invalid=lambda catalog: catalog.invalid_pipelines("gold"),
    task_ids=("rebuild_gold",),
)
MUTATIONS: Final = DagKind(
    kind="mutations",
    subjects=lambda catalog: [spec for spec in catalog.pipelines.values() if spec.mutations is not None],
    build=mutation_dag,
    invalid=lambda catalog: catalog.invalid_pipelines("mutations"),
    task_ids=("mutate_tables",),
)
MODELS: Final = DagKind(
    kind="models",
    subjects=lambda catalog: [spec for spec in catalog.pipelines.values() if spec.models],
    build=training_dag,
    invalid=lambda catalog: catalog.invalid_pipelines("models"),
    task_ids=("train_model",),
)
LOST_EVENTS: Final = DagKind(kind="find_lost_events", subjects=_collected_pipelines, build=lost_events_dag)
CLEAN: Final = DagKind(
    kind="clean",
    subjects=lambda catalog: [relay for relay in catalog.relays.values() if relay.clean is not None],
    build=clean_dag,
    invalid=lambda catalog: catalog.invalid_relays("clean"),
    task_ids=("clean_source",),
)
