"""Callbacks of jobs: a task that fails after all retries raises an alert, one that succeeds resolves it.

They run after the task in its process, or in the DAG processor if that process died, and never fail it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltaworks.airflow.names import RECORD_NIGHT_TASK
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.errors.conditions import alert_for_failure, failure_alerts
from deltaworks.operations.dag_forms import DRY_RUN, STEPS
from deltaworks.specs.dag_ids import split_dag_id

if TYPE_CHECKING:
    from airflow.sdk import Context

    from deltaworks.operations.base import Operation
    from deltaworks.specs.catalog import Catalog

log = logging.getLogger(__name__)


def job_callbacks() -> dict[str, Any]:
    """Returns the callbacks for the `default_args` of a DAG of jobs."""
    return {
        "on_failure_callback": alert_on_failure,
        "on_retry_callback": log_failure,
        "on_success_callback": resolve_on_success,
    }


def log_callbacks() -> dict[str, Any]:
    """Returns the callbacks for the `default_args` of a DAG whose failures raise no alert of their own."""
    return {"on_failure_callback": log_failure, "on_retry_callback": log_failure}


def alert_on_failure(context: Context) -> None:
    """Raises an alert for a task that failed after all tries, with its condition and next step."""
    try:
        objects, catalog = _open_control()
        raise_failure_alert(objects, context)
        _deliver(objects, catalog)
    except Exception:  # a failing alert must not hide the failure of the job
        log.exception("The alert for the failed task could not be raised.")
    log_failure(context)


def send_alerts_of_job(context: Context) -> None:
    """Sends the alerts that a failed job has raised itself, without waiting for the next health check."""
    try:
        _deliver(*_open_control())
    except Exception:  # alerts are kept, and the next health check sends them
        log.exception("The alerts of the failed task could not be sent.")
    log_failure(context)


def log_failure(context: Context) -> None:
    """Writes condition, subject, message and next step of a failed try as the last line of the task's log.

    Airflow writes the traceback before it calls this.
    """
    from deltaworks.airflow.child_process import failure_of

    error, ti = failure_of(context.get("exception")), context["ti"]
    next_step = f" Next: {error.hint}" if error.hint else ""
    log.error("%s %s.%s: %s%s", error.condition, ti.dag_id, ti.task_id, " ".join(error.message.split()), next_step)


def resolve_on_success(context: Context) -> None:
    """Resolves the task's alerts and records its success."""
    try:
        objects, catalog = _open_control()
        if record_success(objects, context):
            _deliver(objects, catalog)
    except Exception:  # a failing record must not fail a job that succeeded
        log.exception("The success could not be recorded.")


def alert_on_missed_deadline(*, dag_id: str, minutes: float, context: Any = None) -> None:
    """Raises DEADLINE_MISSED for a DAG whose run did not end in time. The DAG's next success resolves it."""
    from deltaworks.alerts import raise_alert

    objects, catalog = _open_control()
    raise_alert(
        objects,
        cause="DEADLINE_MISSED",
        subject=dag_id,
        summary=f"A run of {dag_id} has not ended {minutes:g} minutes after it was queued.",
        detail={"run": _run_id(context)},
    )
    _deliver(objects, catalog)


def raise_failure_alert(objects: ObjectStore, context: Context) -> None:
    """Raises the alert of a failed task."""
    from deltaworks.airflow.child_process import failure_of
    from deltaworks.alerts import raise_alert

    error, ti = failure_of(context.get("exception")), context["ti"]
    raise_alert(
        objects,
        cause=alert_for_failure(error.condition),
        subject=f"{ti.dag_id}.{ti.task_id}",
        summary=str(error)[:1_000],
        detail={
            "run_id": ti.run_id,
            "try_number": ti.try_number,
            "condition": error.condition,
            "next_step": error.hint,
        },
    )


def record_success(objects: ObjectStore, context: Context) -> bool:
    """Records a task's success and resolves its alerts; returns whether there is a notification to send."""
    from deltaworks.alerts import resolve_alert

    ti = context["ti"]
    subject = f"{ti.dag_id}.{ti.task_id}"
    # A run of some steps follows its form, so a dry run or a selection of tables does not make up for a failed night.
    has_steps = bool((context.get("params") or {}).get(STEPS))
    is_partial = has_steps and _is_selection(context)
    resolved = [
        resolve_alert(objects, cause=cause, subject=one)
        for cause in sorted(failure_alerts())
        for one in (*(() if is_partial else (subject,)), *_superseded_failures(objects, context, cause))
    ]
    # The last task has no downstream task except the teardown that records the run. A run of some steps is no night.
    is_last_task = not set(context["task"].downstream_task_ids) - {RECORD_NIGHT_TASK}
    if is_last_task and not has_steps:
        objects.put(_success_key(ti.dag_id), json.dumps({"at": iso_now(), "run_id": ti.run_id}).encode())
        resolved.append(resolve_alert(objects, cause="DEADLINE_MISSED", subject=ti.dag_id))
    return any(notification is not None for notification in resolved)


def record_idle_run(objects: ObjectStore, *, dag_id: str, task_id: str, run_id: str, is_last_task: bool) -> None:
    """Records a run that found no work as a success of its task, and resolves the task's alerts.

    The health check sends the notifications.
    """
    from deltaworks.alerts import resolve_alert

    for cause in sorted(failure_alerts()):
        resolve_alert(objects, cause=cause, subject=f"{dag_id}.{task_id}")
    if is_last_task:
        objects.put(_success_key(dag_id), json.dumps({"at": iso_now(), "run_id": run_id}).encode())
        resolve_alert(objects, cause="DEADLINE_MISSED", subject=dag_id)


def _superseded_failures(objects: ObjectStore, context: Context, cause: str) -> list[str]:
    """Returns open failures that a successful manual run makes obsolete.

    These are failures of the same operation in other DAGs of the pipeline, such as maintenance. Empty for dry runs and
    for runs restricted to a selection.
    """
    from deltaworks.alerts.raising import open_subjects

    task, dag_id = context["task"], str(context["ti"].dag_id)
    declared: Operation | None = getattr(task, "operation", None)
    pipeline, _ = split_dag_id(dag_id)
    if declared is None or declared.scope != "pipeline" or dag_id != declared.dag_id(pipeline):
        return []
    if task.task_id != declared.name or _is_selection(context):
        return []
    failed_tasks = (subject.partition(".") for subject in open_subjects(objects, cause))
    return [
        f"{other}.{task_id}"
        for other, _, task_id in failed_tasks
        if task_id == declared.name and split_dag_id(other)[0] == pipeline
    ]


def _is_selection(context: Context) -> bool:
    """Returns whether a task is a dry run, or its form restricts it to a selection. Bounds and reasons do not."""
    task = context["task"]
    declared: Operation | None = getattr(task, "operation", None)
    if declared is None:
        return False
    options = declared.options_model().model_fields
    form = context.get("params") or {}
    # What the DAG decides, such as the engine, is no selection: a night's task has the same values.
    decided = getattr(task, "values", {})
    # Bounds and reasons do not restrict the selection.
    not_a_selection = {DRY_RUN, "reason", *declared.bounds, *decided}
    is_restricted = any(
        value and value != options[name].default
        for name, value in form.items()
        if name in options and name not in not_a_selection
    )
    # As the job receives it: a rendered template is text.
    return is_restricted or str(decided.get(DRY_RUN, form.get(DRY_RUN, False))) == "True"


def last_success(objects: ObjectStore, dag_id: str, *, now: datetime) -> datetime:
    """Returns when a DAG last succeeded. For a DAG that never has, returns the time of the first call."""
    key = _success_key(dag_id)
    item, data = objects.get(key), json.dumps({"at": now.isoformat()}).encode()
    if item is None:
        objects.put_if_absent(key, data)
        return now
    with contextlib.suppress(ValueError, KeyError, TypeError):
        if (recorded := parse_iso(json.loads(item.data)["at"])) is not None:
            return recorded
    # The time is stored. Otherwise it would be `now` in each call, and a DAG without a success would never be overdue.
    objects.put(key, data)
    return now


def _success_key(dag_id: str) -> str:
    return paths.alert_job(dag_id)


def _run_id(context: Any) -> str | None:
    run = context.get("dag_run") if isinstance(context, dict) else None
    run_id = run.get("dag_run_id") or run.get("run_id") if isinstance(run, dict) else getattr(run, "run_id", None)
    return None if run_id is None else str(run_id)


def _open_control() -> tuple[ObjectStore, Catalog]:
    from deltaworks.airflow.aws_connections import set_environment_keys
    from deltaworks.control.objects import open_objects
    from deltaworks.specs.project import load_catalog

    catalog = load_catalog(skip_invalid=True)
    set_environment_keys(catalog.environment)
    return open_objects(catalog.environment.lake), catalog


def _deliver(objects: ObjectStore, catalog: Catalog) -> None:
    from deltaworks.airflow.alert_sending import deliver

    deliver(objects, catalog)
