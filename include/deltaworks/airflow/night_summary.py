"""The teardown task of a maintenance run, which records each task's outcome for the console.

It runs after all other tasks, also if they failed. It does not change the run's state and never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.operations.base import RESULTS_KEY

if TYPE_CHECKING:
    from airflow.sdk import Context

    from deltaworks.control.summaries.nights import Night, NightResult, NightTask
    from deltaworks.specs.environment import EnvironmentSpec

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
