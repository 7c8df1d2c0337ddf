"""Restarts hung streams and relays: clears their task by Airflow's own API, a few times an hour at most.

A stream hangs where its heartbeat is old although its task runs. Clearing kills its driver, which is safe at any
moment: the next try continues where it was. A restart is recorded before it is made, so that their number stays bounded
whatever happens to the health check.
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
from deltaworks.operations.running_tasks import RunsApi, running_task

_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HungProcess:
    """A stream or relay whose heartbeat is stale, with its DAG, the key of its record and its restarts per hour.

    A task younger than `start_seconds` is still starting: it waits for its lease before it writes a heartbeat.
    """

    subject: str
    dag_id: str
    record_key: str
    max_restarts_per_hour: int
    startup_seconds: float = 180.0


def hung_reports(reports: Iterable[Report]) -> list[Report]:
    """The reports of what hangs, one for each DAG.

    A group's driver hangs where none of its streams lives: to end it for one of them would end the others.
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
    """Clear the running task of every hung stream, unless it was cleared too often within the hour.

    Returns:
        A line per stream about what was done or not.

    Raises:
        TransientError: AIRFLOW_UNREACHABLE; ConfigError: AIRFLOW_REFUSED, AIRFLOW_FORBIDDEN.
    """
    return [f"{process.subject}: {_restart_task(objects, process, api, now)}" for process in hung]


def _restart_task(objects: ObjectStore, hung: HungProcess, api: RunsApi, now: datetime) -> str:
    running = running_task(api, hung.dag_id)
    if running is None:
        return "no task of it runs, so none is cleared"
    run, task = running
    if task.start is None or (now - task.start).total_seconds() < hung.startup_seconds:
        return f"its task has only just started ({task.start})"
    if not _reserve_restart(objects, hung, now):
        raise_alert(
            objects,
            cause="RESTARTS_EXHAUSTED",
            subject=hung.subject,
            summary=f"It hangs again, and was restarted {hung.max_restarts_per_hour} times within the hour. It is left as it is.",
            detail={"dag_id": hung.dag_id, "run_id": run.run_id, "task_id": task.task_id},
            now=now,
        )
        return f"it was restarted {hung.max_restarts_per_hour} times within the hour; left to people"
    api.clear_task(hung.dag_id, run.run_id, task.task_id)
    return f"cleared {task.task_id} of {run.run_id}, try {task.try_number}"


def _reserve_restart(objects: ObjectStore, hung: HungProcess, now: datetime) -> bool:
    """Record one of the hour's restarts; False where none is left, or another process has just taken it."""
    item = objects.get(hung.record_key)
    recent = [at for at in parse_restarts(item.data if item else b"") if now - at < _HOUR]
    if len(recent) >= hung.max_restarts_per_hour:
        return False
    data = json.dumps({"at": [at.isoformat() for at in (*recent, now)]}).encode()
    if item is None:
        return objects.put_if_absent(hung.record_key, data)
    return objects.put_if_match(hung.record_key, data, item.etag) is not None


def resolve_restart_alerts(objects: ObjectStore, healthy: Iterable[str], *, now: datetime) -> None:
    """Resolve RESTARTS_EXHAUSTED of streams that work again."""
    for subject in open_subjects(objects, "RESTARTS_EXHAUSTED").intersection(healthy):
        resolve_alert(objects, cause="RESTARTS_EXHAUSTED", subject=subject, summary="It works again.", now=now)


def parse_restarts(data: bytes) -> list[datetime]:
    """The times of restarts in a record; none for one that is torn."""
    try:
        return [at for text in json.loads(data)["at"] if (at := parse_iso(text)) is not None]
    except (ValueError, KeyError, TypeError):
        return []
