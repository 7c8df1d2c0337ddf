"""Builds the scheduled DAGs: gold, models, maintenance and mutations of a pipeline, and the cleaning of buckets.

The timetable of gold DAGs is a cron expression, with one run per date for backfills. A teardown task of each
maintenance run records the outcome of its tasks for the console. It runs also if they failed, does not change the run's
state and never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, BaseOperator, Param, chain
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.timetables.base import DagRunInfo
from airflow.timetables.trigger import CronTriggerTimetable

from deltaworks.airflow import names
from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dag_factory import DagKind, scheduled_dag
from deltaworks.airflow.job_alerts import alert_on_missed_deadline
from deltaworks.airflow.job_settings import process_settings
from deltaworks.airflow.operation_dags import (
    DRY_RUN_IF_MANUAL,
    approve_task,
    count_task,
    operation_task,
    rebuild_gold_task,
)
from deltaworks.airflow.operation_forms import form_params, optional_choice, set_form, steps_param
from deltaworks.control.provenance import UNATTENDED_VARIABLE
from deltaworks.operations.approval_checks import has_declared_options
from deltaworks.operations.base import RESULTS_KEY
from deltaworks.operations.dag_forms import DRY_RUN, STEPS, DagForm, form_by_kind, form_of, unavailable_reason
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec
from deltaworks.specs.schedules import schedules_enabled

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.timetables.base import DataInterval, TimeRestriction

    from deltaworks.control.summaries.nights import Night, NightResult, NightTask

#: Fields of results that name their subject or count its changes, in order of preference.
_NAME_FIELDS = ("table", "target", "model", "pipeline")
_FILES_FIELDS = ("files", "files_before", "files_merged")
_FILES_AFTER_FIELDS = ("files_after", "files_written")
_BYTES_FIELDS = ("bytes", "bytes_before")


class RecordNightOperator(BaseOperator):
    """Records the outcome of this run's tasks in the pipeline's summary of maintenance runs. Idempotent per run."""

    def __init__(self, *, pipeline: str, environment: EnvironmentSpec, **settings: Any) -> None:
        # It only records the run, so its own outcome must neither raise nor resolve an alert.
        silent = {"on_success_callback": None, "on_failure_callback": None}
        super().__init__(**settings | silent)
        self._pipeline = pipeline
        self._environment = environment

    def execute(self, context: Context) -> None:
        """Reads states and results of the other tasks and records them."""
        from deltaworks.control.objects import open_objects
        from deltaworks.control.summaries.base import log_failures
        from deltaworks.control.summaries.nights import record_night

        with log_failures(f"The night of {self._pipeline}"):
            ti: Any = context["ti"]
            dag: Any = context["dag"]
            ended = {row["task_id"]: row for row in ti.get_task_breadcrumbs(dag_id=ti.dag_id, run_id=ti.run_id)}
            # Without the tasks that only ask for an approval.
            order = [task.task_id for task in dag.topological_sort() if getattr(task, "operation", None) is not None]
            tasks = [
                night_task(task, ended[task], ti.xcom_pull(task_ids=task, key=RESULTS_KEY))
                for task in order
                if task in ended and ended[task]["state"] != "skipped"
            ]
            set_environment_keys(self._environment)
            record_night(open_objects(self._environment.lake), self._pipeline, _night(context, tasks))


def _night(context: Context, tasks: Iterable[NightTask]) -> Night:
    from deltaworks.control.clock import iso_now
    from deltaworks.control.summaries.nights import Night

    run: Any = context["dag_run"]
    started_at = run.start_date or run.run_after
    return Night(
        run=run.run_id,
        date=started_at.date().isoformat(),
        started_at=started_at.isoformat(timespec="seconds"),
        ended_at=iso_now(),
        is_manual=str(run.run_type) == "manual",
        tasks=tuple(tasks),
    )


def night_task(task: str, breadcrumb: Mapping[str, Any], results: Any) -> NightTask:
    """Returns a task's outcome with its results, which are plain records of any operation. Pure."""
    from deltaworks.control.summaries.nights import MAX_RESULTS, NightTask

    records = [record for record in results if isinstance(record, dict)] if isinstance(results, list) else []
    night_results = sorted(
        (night_result(record) for record in records), key=lambda one: (one.is_idle, -one.bytes, -one.files)
    )
    return NightTask(
        task=task,
        state=str(breadcrumb.get("state") or ""),
        files=sum(one.files for one in night_results),
        rows=sum(one.rows for one in night_results),
        bytes=sum(one.bytes for one in night_results),
        seconds=float(breadcrumb.get("duration") or 0.0),
        results=tuple(night_results[:MAX_RESULTS]),
        omitted=max(0, len(night_results) - MAX_RESULTS),
    )


def night_result(record: Mapping[str, Any]) -> NightResult:
    """Converts a record of an operation into a result of the maintenance summary. Pure."""
    from deltaworks.control.summaries.base import truncate
    from deltaworks.control.summaries.nights import NightResult

    files_after = _first_number(record, _FILES_AFTER_FIELDS)
    return NightResult(
        subject=truncate(str(next((record[name] for name in _NAME_FIELDS if record.get(name)), ""))),
        files=int(_first_number(record, _FILES_FIELDS) or 0),
        files_after=None if files_after is None else int(files_after),
        rows=int(_first_number(record, ("rows",)) or 0),
        bytes=int(_first_number(record, _BYTES_FIELDS) or 0),
        seconds=float(_first_number(record, ("seconds",)) or 0.0),
        deferred=int(_first_number(record, ("deferred",)) or 0),
        dry_run=record.get("dry_run") is True,
        error=truncate(str(record.get("error") or "")),
        reason=truncate(str(record.get("reason") or "")),
    )


def _first_number(record: Mapping[str, Any], fields: Iterable[str]) -> float | None:
    values = (record.get(name) for name in fields)
    return next((value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)), None)


#: Offset of a backfill run's logical date. Airflow allows one run per logical date, and a scheduled run may have
#: midnight. Cron expressions have no seconds, so no scheduled run has this offset.
_OFFSET_INTO_DATE = timedelta(seconds=1)
_DAY = timedelta(days=1)


class GoldTimetable(CronTriggerTimetable):
    """Timetable with a cron expression for scheduled runs. Backfills have one run per date, with any expression.

    The command `airflow backfill create --from-date A --to-date B` creates one run for each complete date from A to B.
    If the DAG itself has no catch-up, Airflow calls a timetable with `catchup` only for backfills.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Returns the next run, or the next date of a backfill."""
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
        return DagRunInfo.interval(date + _OFFSET_INTO_DATE, date + _DAY)


#: A backfill run builds its own date, a manual run the dates of its form, and any other run the changed dates.
DATES_TEMPLATE = "{{ ds if dag_run.run_type == 'backfill' else (params.dates or '') }}"

#: Events are checked an hour after they were acknowledged. A shorter interval would not find more of them.
_LOST_EVENTS_SCHEDULE = "35 * * * *"
#: Scheduled runs and runs after another pipeline's gold mostly find no changes, so they first check without Spark.
#: Manual runs start Spark immediately, because a person usually triggers one to build something.
_IS_AUTOMATIC_RUN = "{{ dag_run.run_type in ('scheduled', 'asset_triggered') }}"


def _pipeline_dag(spec: PipelineSpec, kind: str, *, tag: str = "", **settings: Any) -> DAG:
    """Returns a scheduled DAG of a pipeline, without its tasks."""
    tags = (tag or kind, spec.pipeline, *spec.tags)
    return scheduled_dag(spec.pipeline, kind, owner=spec.owner, tags=tags, context={"spec": spec}, **settings)


def gold_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG that rebuilds a pipeline's gold tables.

    It runs on its schedule, manually, and after updates of other pipelines' gold tables that it reads.
    """
    with _pipeline_dag(
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
            spec, environment, form=form, values={"dates": DATES_TEMPLATE}, try_without_spark=_IS_AUTOMATIC_RUN
        )
        operation_task("refresh_gold", spec.pipeline, environment, form=form)
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
    if expression is None or not schedules_enabled():
        return None
    return GoldTimetable(expression, timezone="UTC", run_immediately=names.NO_IMMEDIATE_RUN)


def maintenance_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's maintenance DAG. Its VACUUM cannot be undone, so it accepts no backfill."""
    with _pipeline_dag(
        spec,
        "maintenance",
        description=f"OPTIMIZE, VACUUM and gold of {spec.pipeline}",
        timeout=timedelta(hours=12),
        schedule=names.cron_timetable(spec.maintenance.schedule),
    ) as dag:
        form = _maintenance_form(spec)
        tasks = _maintenance_tasks(spec, environment, form)
        chain(*tasks)
    steps = [task.task_id for task in tasks if task.task_id in OPERATIONS]
    set_form(dag, _maintenance_params(form, spec, steps))
    return dag


def _maintenance_form(spec: PipelineSpec) -> DagForm:
    """Returns the form of a pipeline's maintenance: its operations, restricted to those that the pipeline supports."""
    form = form_by_kind("maintenance")
    return replace(form, operations=tuple(one for one in form.operations if unavailable_reason(one, spec) is None))


def _maintenance_params(form: DagForm, spec: PipelineSpec, steps: Sequence[str]) -> dict[str, Param]:
    params = form_params(form, spec)
    return params | {
        STEPS: steps_param(steps),
        "round": optional_choice(
            ["daily", "weekly"],
            unset_label="(declared for this weekday)",
            title="Round of OPTIMIZE",
            description="weekly: adds a second round.",
        ),
        DRY_RUN: Param(
            spec.maintenance.vacuum_dry_run,
            type="boolean",
            title="Only count",
            description="Dry run: files, orphans and rows that would be rewritten or deleted are only counted.",
        ),
    }


def _maintenance_tasks(spec: PipelineSpec, environment: EnvironmentSpec, form: DagForm) -> list[BaseOperator]:
    upkeep = spec.maintenance

    def task(name: str, **settings: Any) -> BaseOperator:
        return operation_task(name, spec.pipeline, environment, form=form, **_STEP_SETTINGS | settings)

    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Runs before OPTIMIZE, which then compacts the files that it wrote.
        steps.append(task("mutate_tables", values={"dry_run": DRY_RUN_IF_MANUAL}))
        steps.append(task("purge_deleted"))
    # Runs before OPTIMIZE, which then need not rewrite the deleted rows, and before VACUUM, which then includes the
    # files.
    steps.append(task("expire_quarantine"))
    if upkeep.optimize:
        steps += _optimize_tasks(upkeep, task)
    steps += _vacuum_approval(spec, environment)
    steps += [task("vacuum_tables"), task("remove_orphans"), task("compact_control_tables"), task("learn_input_rate")]
    steps.append(
        task("snapshot_health", values={"list_folders": f"{{{{ params.list_folders or not params.{STEPS} }}}}"})
    )
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment, form=form, try_without_spark="True", **_STEP_SETTINGS))
    return [*steps, _record_night_task(spec.pipeline, environment)]


#: A step runs if the steps before it succeeded or were not selected. Its job learns whether the run is unattended.
_STEP_SETTINGS: Final[dict[str, Any]] = {
    "trigger_rule": "none_failed",
    "env_vars": {UNATTENDED_VARIABLE: f"{{{{ not params.{STEPS} }}}}"},
}


def _vacuum_approval(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Returns the tasks that count and ask before a VACUUM that the nightly limits do not cover. Other runs skip them.

    A rejection skips all later steps.
    """
    vacuum = DagForm(kind="maintenance", operations=(get_operation("vacuum_tables"),))
    gate = ShortCircuitOperator(
        task_id="vacuum_gate",
        python_callable=needs_vacuum_approval,
        ignore_downstream_trigger_rules=False,
        trigger_rule="none_failed",
        **process_settings(environment.shares.of("maintenance")),
    )
    count = count_task(vacuum, spec, environment)
    return [gate, count, approve_task(vacuum, spec, environment, ignore_downstream_trigger_rules=True)]


def needs_vacuum_approval(params: dict[str, Any], **_: Any) -> bool:
    """Returns whether a maintenance run deletes files beyond what runs unattended: a person selected VACUUM as a step,
    or set options of its own.
    """
    operation, steps = get_operation("vacuum_tables"), params[STEPS] or ()
    form = DagForm(kind="maintenance", operations=(operation,))
    options = read_options(operation.options_model(), form.option_values(operation, params))
    if params[DRY_RUN] or (steps and operation.name not in steps):
        return False
    return bool(steps) or not has_declared_options(options)


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


def _optimize_tasks(upkeep: MaintenanceSpec, task: Callable[..., BaseOperator]) -> list[BaseOperator]:
    """Returns the OPTIMIZE tasks: one that compacts small partitions without Spark, and a Spark job if any remain.

    Both end within the declared minutes. A retry continues where the last try stopped.
    """
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_day is not None else 0)
    values = {"round": round_template(upkeep), "dry_run": DRY_RUN_IF_MANUAL}
    # An OPTIMIZE command that has started may finish, and measuring the tables takes time too.
    limit = timedelta(minutes=minutes + 120)
    return [
        task(
            "optimize_tables",
            task_id="compact_tables",
            as_process=True,
            values={**values, "spark": False},
            execution_timeout=limit,
        ),
        task("optimize_tables", values=values, only_if=_IS_SPARK_NEEDED, execution_timeout=limit),
    ]


def round_template(upkeep: MaintenanceSpec) -> str:
    """Returns a template for the OPTIMIZE round, `daily` or `weekly`: the form's value, or else the one for the run's
    weekday.
    """
    weekly = f"dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_day}'"
    return f"{{{{ params.round or ('weekly' if {weekly} else 'daily') }}}}"


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
    with _pipeline_dag(spec, form.kind, **settings) as dag:
        operation_task(name, spec.pipeline, environment, form=form, **(task or {}))
    set_form(dag, form_params(form, spec))
    return dag


def mutation_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's mutation DAG. A run applies all waiting requests, so missed runs need no catch-up."""
    assert spec.mutations is not None
    return _operation_dag(
        spec,
        "mutate_tables",
        environment,
        task={"values": {"dry_run": DRY_RUN_IF_MANUAL}},
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
MAINTENANCE: Final = DagKind(
    kind="maintenance",
    subjects=lambda catalog: catalog.pipelines.values(),
    build=maintenance_dag,
    invalid=lambda catalog: catalog.invalid_pipelines(),
    task_ids=("optimize_tables",),
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
