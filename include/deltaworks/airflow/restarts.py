"""Starts hung streams and relays anew: clears their task by Airflow's own API, a few times an hour at most.

Hung is one whose heartbeat is old although its task runs. Clearing kills its driver, which is safe at any moment: the
next try goes on where it was. How often that was done is on record before it is done, so that it stays bounded
whatever happens to the health check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.operations.airflow_api import DagRun, TaskInstance

HOUR = timedelta(hours=1)


class Api(Protocol):
    """What is asked of Airflow."""

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]: ...

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]: ...

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A stream or relay whose heartbeat is stale: what runs it, where its record is, how often it may be restarted.

    A task younger than `start_seconds` is still starting: it waits for its lease before it writes a heartbeat.
    """

    subject: str
    dag_id: str
    key: str
    per_hour: int
    start_seconds: float = 180.0


def restart_hung(objects: ObjectStore, hung: Iterable[Hung], api: Api, *, now: datetime) -> list[str]:
    """Clear the running task of each hung one, unless it was cleared too often within the hour.

    Returns:
        A line for each about what was done or not.

    Raises:
        TransientError: AIRFLOW_UNREACHABLE; ConfigError: AIRFLOW_REFUSED.
    """
    return [f"{each.subject}: {_restart(objects, each, api, now)}" for each in hung]


def _restart(objects: ObjectStore, hung: Hung, api: Api, now: datetime) -> str:
    found = _running(api, hung.dag_id)
    if found is None:
        return "no task of it runs, so none is cleared"
    run, task = found
    if task.start is None or (now - task.start).total_seconds() < hung.start_seconds:
        return f"its task has only just started ({task.start})"
    if not _counted(objects, hung, now):
        raise_alert(
            objects,
            cause="RESTARTS_EXHAUSTED",
            subject=hung.subject,
            summary=f"It hangs again, and was started anew {hung.per_hour} times within the hour. It is left as it is.",
            detail={"dag_id": hung.dag_id, "run_id": run.run_id, "task_id": task.task_id},
            now=now,
        )
        return f"it was started anew {hung.per_hour} times within the hour; left to people"
    api.clear_task(hung.dag_id, run.run_id, task.task_id)
    return f"cleared {task.task_id} of {run.run_id}, try {task.try_number}"


def _running(api: Api, dag_id: str) -> tuple[DagRun, TaskInstance] | None:
    for run in api.dag_runs(dag_id, limit=5):
        if run.finished:
            continue
        for task in api.task_instances(dag_id, run.run_id):
            if task.state == "running":
                return run, task
    return None


def _counted(objects: ObjectStore, hung: Hung, now: datetime) -> bool:
    """Take one of the hour's restarts; False where there is none left, or another one has just taken it."""
    found = objects.get(hung.key)
    taken = [at for at in restarts(found.data if found else b"") if now - at < HOUR]
    if len(taken) >= hung.per_hour:
        return False
    data = json.dumps({"at": [at.isoformat() for at in (*taken, now)]}).encode()
    if found is None:
        return objects.put_if_absent(hung.key, data)
    return objects.put_if_match(hung.key, data, found.etag) is not None


def settle_restarts(objects: ObjectStore, well: Iterable[str], *, now: datetime) -> None:
    """Resolve the alert of those that do not hang any more."""
    for subject in well:
        resolve_alert(objects, cause="RESTARTS_EXHAUSTED", subject=subject, summary="It works again.", now=now)


def restarts(data: bytes) -> list[datetime]:
    """When one was started anew, by its record; nothing for one that is torn."""
    try:
        return [at for text in json.loads(data)["at"] if (at := parse_iso(text)) is not None]
    except (ValueError, KeyError, TypeError):
        return []
