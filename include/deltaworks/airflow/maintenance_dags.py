"""Builds a pipeline's maintenance DAG: the night, a chain of tasks that spark-submit runs.

Mutations where declared, OPTIMIZE, VACUUM, gold, and then what keeps the control tables and measures the others. No
step needs the success of the one before, so each runs also after a failed one. The last task records the run for the
console, and fails if any step did: the run is red, and its first lines say which step, table and file failed and why.

`maintenance_on` says which machine does the work: see `deltaworks.specs.maintenance.MaintenanceEngine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, BaseOperator, Param, chain

from deltaworks.airflow import names
from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dag_factory import DagKind
from deltaworks.airflow.job_settings import process_settings
from deltaworks.airflow.operation_dags import (
    DRY_RUN_IF_MANUAL,
    approve_task,
    count_task,
    form_params,
    operation_task,
    optional_choice,
    rebuild_gold_task,
    set_form,
    steps_param,
)
from deltaworks.airflow.scheduled_dags import declared_engine, pipeline_dag
from deltaworks.control.provenance import UNATTENDED_VARIABLE
from deltaworks.errors import ContractError
from deltaworks.operations.approval_checks import has_declared_options
from deltaworks.operations.base import ENGINE_KEY, ENGINE_OPTION, ERROR_KEY, RESULTS_KEY
from deltaworks.operations.dag_forms import DRY_RUN, STEPS, DagForm, form_by_kind, unavailable_reason
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.maintenance import MaintenanceEngine, MaintenanceSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from deltaworks.control.summaries.jobs import Night, NightResult, NightTask

#: The field of the form that overrides `maintenance_on` for one run.
ENGINE: Final = "maintenance_on"

#: Fields of results that name their subject or count its changes, in order of preference.
_NAME_FIELDS = ("table", "target", "model", "pipeline")
_FILES_FIELDS = ("files", "files_before", "files_merged")
_FILES_AFTER_FIELDS = ("files_after", "files_written")
_BYTES_FIELDS = ("bytes", "bytes_before")


class RecordNightOperator(BaseOperator):
    """Records the outcome of this run's steps in the pipeline's summary of maintenance runs, and fails if a step did.

    Recording is idempotent per run, and its own failure never fails the task.
    """

    def __init__(self, *, pipeline: str, environment: EnvironmentSpec, **settings: Any) -> None:
        # The steps raise and resolve the alerts of their failures.
        silent = {"on_success_callback": None, "on_failure_callback": None}
        super().__init__(**settings | silent)
        self._pipeline = pipeline
        self._environment = environment

    def execute(self, context: Context) -> None:
        """Reads states and results of the steps, and records them.

        Raises:
            ContractError: MAINTENANCE_STEPS_FAILED.
        """
        from deltaworks.control.objects import open_objects
        from deltaworks.control.summaries.base import log_failures
        from deltaworks.control.summaries.jobs import record_night

        tasks = self._ended_steps(context)
        with log_failures(f"The night of {self._pipeline}"):
            set_environment_keys(self._environment)
            record_night(open_objects(self._environment.lake), self._pipeline, _night(context, tasks))
        if error := self._error(tasks):
            # First, as Airflow's log shows an exception after all lines.
            self.log.error("%s", error)
        for task in tasks:
            self.log.info("%s: %s, by %s", task.task, task.state, task.engine or "nobody")
        if error:
            raise error

    def _error(self, tasks: Sequence[NightTask]) -> ContractError | None:
        failed = [task for task in tasks if task.state in _FAILED_STATES]
        if not failed:
            return None
        return ContractError(
            "MAINTENANCE_STEPS_FAILED",
            f"{len(failed)} of {len(tasks)} steps of the maintenance of {self._pipeline} failed; the others were "
            "done. " + "; ".join(map(describe_failure, failed)),
        )

    @staticmethod
    def _ended_steps(context: Context) -> list[NightTask]:
        ti: Any = context["ti"]
        dag: Any = context["dag"]
        ended = {row["task_id"]: row for row in ti.get_task_breadcrumbs(dag_id=ti.dag_id, run_id=ti.run_id)}
        # Without the tasks that only ask for an approval.
        order = [task.task_id for task in dag.topological_sort() if getattr(task, "operation", None) is not None]
        return [
            night_task(task, ended[task], *(ti.xcom_pull(task_ids=task, key=key) for key in _STEP_KEYS))
            for task in order
            if task in ended and ended[task]["state"] != "skipped"
        ]


#: What a step leaves for the record: its results, what did the work and why, and its error.
_STEP_KEYS: Final = (RESULTS_KEY, ENGINE_KEY, ERROR_KEY)
_FAILED_STATES: Final = ("failed", "upstream_failed")


def describe_failure(task: NightTask) -> str:
    """Returns the step, and the tables that failed with their errors; the error of the step if no table has one."""
    if task.state == "upstream_failed":
        return f"{task.task}: it was not approved"
    tables = [f"{result.subject}: {result.error}" for result in task.results if result.error]
    return f"{task.task}: {'; '.join(tables) or task.error or 'see its log'}"


def _night(context: Context, tasks: Iterable[NightTask]) -> Night:
    from deltaworks.control.clock import iso_now
    from deltaworks.control.summaries.jobs import Night

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


def night_task(
    task: str, breadcrumb: Mapping[str, Any], results: Any, engine: Any = None, error: Any = None
) -> NightTask:
    """Returns a task's outcome with its results, which are plain records of any operation. Pure."""
    from deltaworks.control.summaries.base import truncate
    from deltaworks.control.summaries.jobs import MAX_RESULTS, NightTask

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
        engine=truncate(str(engine or "")),
        error=truncate(str(error or "")),
        results=tuple(night_results[:MAX_RESULTS]),
        omitted=max(0, len(night_results) - MAX_RESULTS),
    )


def night_result(record: Mapping[str, Any]) -> NightResult:
    """Converts a record of an operation into a result of the maintenance summary. Pure."""
    from deltaworks.control.summaries.base import truncate
    from deltaworks.control.summaries.jobs import NightResult

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
        engine=truncate(str(record.get("engine") or "")),
    )


def _first_number(record: Mapping[str, Any], fields: Iterable[str]) -> float | None:
    values = (record.get(name) for name in fields)
    return next((value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)), None)


def maintenance_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns a pipeline's maintenance DAG. Its VACUUM cannot be undone, so it accepts no backfill."""
    with pipeline_dag(
        spec,
        "maintenance",
        description=f"OPTIMIZE, VACUUM and gold of {spec.pipeline}",
        timeout=timedelta(hours=12),
        schedule=names.cron_timetable(spec.maintenance.schedule),
    ) as dag:
        form = _maintenance_form(spec, environment)
        tasks = _maintenance_tasks(spec, environment, form)
        chain(*tasks)
    steps = [task.task_id for task in tasks if task.task_id in OPERATIONS]
    set_form(dag, _maintenance_params(form, spec, steps, engine=declared_engine(spec, environment)))
    return dag


def engine_template(declared: MaintenanceEngine) -> str:
    """Returns a template for the engine of a step: as the run's form says, or else as declared.

    A run of chosen steps looks first where jobs are declared, so that its form submits nothing where nothing is left.
    """
    of_steps = "auto" if declared == "spark" else declared
    return f"{{{{ params.{ENGINE} or ('{of_steps}' if params.{STEPS} else '{declared}') }}}}"


def mutation_engine_template(declared: MaintenanceEngine) -> str:
    """Returns a template for the engine of mutations: a process applies small batches unless jobs are declared."""
    return f"{{{{ 'spark' if (params.{ENGINE} or '{declared}') == 'spark' else 'process' }}}}"


def _has_catalogs(spec: PipelineSpec, environment: EnvironmentSpec) -> bool:
    return any(one.includes(spec.pipeline) for one in environment.catalogs)


def _maintenance_form(spec: PipelineSpec, environment: EnvironmentSpec) -> DagForm:
    """Returns the form of a pipeline's maintenance: its operations, restricted to those that the pipeline supports."""
    form = form_by_kind("maintenance")
    absent = () if _has_catalogs(spec, environment) else ("sync_catalogs",)
    available = (one for one in form.operations if unavailable_reason(one, spec) is None and one.name not in absent)
    return replace(form, operations=tuple(available))


def _maintenance_params(
    form: DagForm, spec: PipelineSpec, steps: Sequence[str], *, engine: MaintenanceEngine
) -> dict[str, Param]:
    params = form_params(form, spec)
    # The engine has one field for all steps.
    params.pop(ENGINE_OPTION, None)
    return params | {
        STEPS: steps_param(steps),
        ENGINE: optional_choice(
            get_args(MaintenanceEngine),
            unset_label=f"(declared: {engine})",
            title="Machine that does the work",
            description=(
                "spark: jobs that spark-submit runs. auto: looks first, and submits a job where there is work; also "
                "where only some steps are chosen. process: processes without Spark, and jobs only for what needs it."
            ),
        ),
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
    declared = declared_engine(spec, environment)
    engine = {"engine": engine_template(declared)}

    def task(name: str, **settings: Any) -> BaseOperator:
        return operation_task(name, spec.pipeline, environment, form=form, **_STEP_SETTINGS | settings)

    steps: list[BaseOperator] = []
    if spec.mutations is not None:
        # Runs before OPTIMIZE, which then compacts the files that it wrote.
        values = {"dry_run": DRY_RUN_IF_MANUAL, ENGINE_OPTION: True}
        steps.append(task("mutate_tables", values=values, engine=mutation_engine_template(declared)))
        steps.append(task("purge_deleted"))
    # Runs before OPTIMIZE, which then need not rewrite the deleted rows, and before VACUUM, which then includes the
    # files.
    steps.append(task("expire_quarantine"))
    if spec.maintenance.optimize:
        steps.append(_optimize_task(spec.maintenance, task, **engine))
    steps += _vacuum_approval(spec, environment)
    # Runs if it needed no approval or got it.
    steps.append(task("vacuum_tables", values={ENGINE_OPTION: True}, trigger_rule="none_failed", **engine))
    if spec.gold.tables:
        steps.append(rebuild_gold_task(spec, environment, form=form, **_STEP_SETTINGS | engine))
        steps.append(task("verify_gold", look_if=_VERIFY_WEEKLY))
    steps += [task("remove_orphans"), task("compact_control_tables"), task("learn_input_rate")]
    if _has_catalogs(spec, environment):
        steps.append(task("sync_catalogs"))
    steps.append(
        task("snapshot_health", values={"list_folders": f"{{{{ params.list_folders or not params.{STEPS} }}}}"})
    )
    return [*steps, _record_night_task(spec.pipeline, environment)]


#: A step also runs after steps that failed or were skipped. Its job learns whether the run is unattended.
_STEP_SETTINGS: Final[dict[str, Any]] = {
    "trigger_rule": "all_done",
    "env_vars": {UNATTENDED_VARIABLE: f"{{{{ not params.{STEPS} }}}}"},
}


#: A run of all steps compares gold only if that was last done a week ago.
_VERIFY_WEEKLY: Final = f"{{{{ not params.{STEPS} }}}}"


def _optimize_task(upkeep: MaintenanceSpec, task: Callable[..., BaseOperator], **settings: Any) -> BaseOperator:
    """Returns the OPTIMIZE task, which ends within the declared minutes. A retry continues where the last try stopped.

    In a submitted job small partitions are compacted by the driver, without Spark's tasks.
    """
    minutes = upkeep.optimize_minutes + (upkeep.weekly_minutes if upkeep.weekly_day is not None else 0)
    return task(
        "optimize_tables",
        values={"round": round_template(upkeep), "dry_run": DRY_RUN_IF_MANUAL},
        # An OPTIMIZE command that has started may finish, and measuring the tables takes time too.
        execution_timeout=timedelta(minutes=minutes + 120),
        **settings,
    )


def round_template(upkeep: MaintenanceSpec) -> str:
    """Returns a template for the OPTIMIZE round, `daily` or `weekly`: the form's value, or else the one for the run's
    weekday.
    """
    weekly = f"dag_run.run_after.strftime('%A').lower() == '{upkeep.weekly_day}'"
    return f"{{{{ params.round or ('weekly' if {weekly} else 'daily') }}}}"


def _vacuum_approval(spec: PipelineSpec, environment: EnvironmentSpec) -> list[BaseOperator]:
    """Returns the tasks that count and ask before a VACUUM that the nightly limits do not cover. Other runs skip them.

    A rejection skips VACUUM alone.
    """
    vacuum = DagForm(kind="maintenance", operations=(get_operation("vacuum_tables"),))
    gate = ShortCircuitOperator(
        task_id="vacuum_gate",
        python_callable=needs_vacuum_approval,
        ignore_downstream_trigger_rules=False,
        trigger_rule="all_done",
        **process_settings(environment.shares, "maintenance"),
    )
    count = count_task(vacuum, spec, environment)
    return [gate, count, approve_task(vacuum, spec, environment, ignore_downstream_trigger_rules=False)]


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
    """Returns the teardown task that records the run, also after failures, and fails the run if a step failed."""
    settings = process_settings(environment.shares, "maintenance")
    limit = {"execution_timeout": timedelta(minutes=5)}
    note = RecordNightOperator(
        task_id=names.RECORD_NIGHT_TASK, pipeline=pipeline, environment=environment, **settings | limit
    )
    note.as_teardown(on_failure_fail_dagrun=True)
    return note


MAINTENANCE: Final = DagKind(
    kind="maintenance",
    subjects=lambda catalog: catalog.pipelines.values(),
    build=maintenance_dag,
    invalid=lambda catalog: catalog.invalid_pipelines(),
    task_ids=("optimize_tables",),
)
