"""Restarts hung streams and relays by clearing their task through Airflow's API, with a limit per hour.

A process hangs if its heartbeat is stale although its task runs. Clearing the task kills the driver, which is safe at
any time: the next try resumes. A restart is recorded before it is made, so the limit holds even if the health check
crashes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control.clock import parse_iso
from deltaworks.control.health.report import Report
from deltaworks.control.objects import ObjectStore
from deltaworks.operations.continuous_jobs import RunsApi, running_task

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HungProcess:
    """A stream or relay with a stale heartbeat: its DAG, the key of its restart record and its limit per hour.

    A task younger than `startup_seconds` is still starting: it waits for its lease before it writes a heartbeat.
    """

    subject: str
    dag_id: str
    record_key: str
    max_restarts_per_hour: int
    startup_seconds: float = 180.0


def hung_reports(reports: Iterable[Report]) -> list[Report]:
    """Returns the reports of hung processes, at most one per DAG.

    A group's driver counts as hung only if none of its streams is alive, because a restart would end the others.
    """
    by_dag: dict[str, list[Report]] = {}
    for item in reports:
        by_dag.setdefault(item.subject.dag_id, []).append(item)
    hung = []
    for items in by_dag.values():
        stale = [item for item in items if item.verdict.cause == "HEARTBEAT_STALE"]
        if stale and not any(item.is_running for item in items):
            hung.append(stale[0])
    return hung


def restart_hung(objects: ObjectStore, hung: Iterable[HungProcess], api: RunsApi, *, now: datetime) -> list[str]:
    """Clears the running task of every hung process within its hourly limit.

    Returns:
        One line per process that says what was done.

    Raises:
        TransientError: AIRFLOW_UNREACHABLE; ConfigError: AIRFLOW_REFUSED, AIRFLOW_FORBIDDEN.
    """
    return [f"{process.subject}: {_restart_task(objects, process, api, now)}" for process in hung]


def _restart_task(objects: ObjectStore, hung: HungProcess, api: RunsApi, now: datetime) -> str:
    running = running_task(api, hung.dag_id)
    if running is None:
        return "none of its tasks is running, so none is cleared"
    run, task = running
    if task.start is None or (now - task.start).total_seconds() < hung.startup_seconds:
        return f"its task is still starting ({task.start})"
    if not _reserve_restart(objects, hung, now):
        raise_alert(
            objects,
            cause="RESTARTS_EXHAUSTED",
            subject=hung.subject,
            summary=f"It hangs again after {hung.max_restarts_per_hour} restarts within the hour. "
            "It is not restarted again.",
            detail={"dag_id": hung.dag_id, "run_id": run.run_id, "task_id": task.task_id},
            now=now,
        )
        return f"not restarted: {hung.max_restarts_per_hour} restarts within the hour"
    api.clear_task(hung.dag_id, run.run_id, task.task_id)
    return f"cleared {task.task_id} of {run.run_id}, try {task.try_number}"


def _reserve_restart(objects: ObjectStore, hung: HungProcess, now: datetime) -> bool:
    """Records one of the hour's restarts before it is made.

    Returns False if the limit is reached, or if another process recorded a restart at the same time.
    """
    item = objects.get(hung.record_key)
    recent = [at for at in parse_restarts(item.data if item else b"") if now - at < _HOUR]
    if len(recent) >= hung.max_restarts_per_hour:
        return False
    data = json.dumps({"at": [at.isoformat() for at in (*recent, now)]}).encode()
    if item is None:
        return objects.put_if_absent(hung.record_key, data)
    return objects.put_if_match(hung.record_key, data, item.etag) is not None


def resolve_restart_alerts(objects: ObjectStore, healthy: Iterable[str], *, now: datetime) -> None:
    """Resolves RESTARTS_EXHAUSTED for processes that are no longer hung."""
    for subject in open_subjects(objects, "RESTARTS_EXHAUSTED").intersection(healthy):
        resolve_alert(objects, cause="RESTARTS_EXHAUSTED", subject=subject, summary="It works again.", now=now)


def parse_restarts(data: bytes) -> list[datetime]:
    """Returns the restart times of a record; empty for a damaged one."""
    try:
        return [at for text in json.loads(data)["at"] if (at := parse_iso(text)) is not None]
    except (ValueError, KeyError, TypeError):
        return []
