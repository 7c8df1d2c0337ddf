"""Restarts hung streams and relays by clearing their task through Airflow's API, writes notes on their runs, and starts
the first snapshots of their tables.

A process hangs if its heartbeat is stale although its task runs. Clearing the task kills the driver, which is safe at
any time: the next try resumes. Restarts are limited per hour. A restart is recorded before it is made, so the limit
holds even if the health check crashes.

A note shows a stream's last hour on the page of its DAG run, and marks the run in the grid. A run takes hours, so the
health DAG updates its note. Airflow logs each change, so a note is written only every few minutes, and immediately when
the verdict changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control.backoff import MAX_WAIT_SECONDS
from deltaworks.control.clock import parse_iso
from deltaworks.control.health.limits import age_seconds, format_duration
from deltaworks.control.health.report import Report
from deltaworks.control.health.verdicts import Verdict, describe_backlog, starting_verdict
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import airflow_run_of
from deltaworks.operations.continuous_jobs import RunsApi, running_task
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.registry import get_operation

if TYPE_CHECKING:
    from deltaworks.airflow_client.api import AirflowApi

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


def start_first_snapshots(pipelines: Iterable[str], api: AirflowApi, *, now: datetime) -> list[str]:
    """Starts the step of maintenance that measures the tables of pipelines; returns those with a run. The night does
    it for a pipeline whose maintenance is paused.

    At most one run a day and pipeline, also if it fails: the id of the run is that of the date.
    """
    operation = get_operation("snapshot_health")
    started = []
    for pipeline in pipelines:
        dag = api.dag(operation.dag_id(pipeline))
        if dag is None or dag.is_paused:
            continue
        conf = form_of(operation).select(operation, {})
        api.trigger(
            dag.dag_id,
            run_id=f"first_snapshot__{now:%Y-%m-%d}",
            conf=conf,
            note="Started by the health check: no snapshot of the tables existed.",
        )
        started.append(pipeline)
    return started


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


def with_task_starts(reports: Iterable[Report], api: RunsApi, *, now: datetime) -> list[Report]:
    """Replaces verdicts of hung processes whose task has just started, or waits for its next try.

    Their heartbeat is that of an earlier run. That lasts at most as long as a start and the longest wait together.

    Raises:
        TransientError: AIRFLOW_UNREACHABLE; ConfigError: AIRFLOW_REFUSED, AIRFLOW_FORBIDDEN.
    """
    reports = list(reports)
    started = {item.subject.dag_id: _task_start(item, api, now) for item in hung_reports(reports)}
    return [
        item
        if item.verdict.cause != "HEARTBEAT_STALE" or (at := started.get(item.subject.dag_id)) is None
        else replace(item, verdict=starting_verdict(item.verdict, started_at=at, now=now))
        for item in reports
    ]


def _task_start(item: Report, api: RunsApi, now: datetime) -> datetime | None:
    """Returns when a process that looks hung began to start; None if it has been running for longer."""
    limits = item.subject.limits
    silent_seconds = age_seconds(item.heartbeat.written_at if item.heartbeat else None, now)
    if silent_seconds > limits.starting_seconds_max + MAX_WAIT_SECONDS:
        return None
    if (running := running_task(api, item.subject.dag_id)) is not None:
        start = running[1].start
        return start if start is not None and (now - start).total_seconds() < limits.grace_seconds else None
    return now if running_task(api, item.subject.dag_id, state="up_for_retry") is not None else None


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


NOTE_INTERVAL_MINUTES = 5
#: Airflow's limit.
MAX_CHARACTERS = 1_000


def run_note(item: Report, now: datetime) -> str:
    """Returns a run's note: state, rows, quarantine and lag. It contains counts, codes and field names, no values."""
    verdict, hour = item.verdict, item.throughput.last_hour(now)
    rejected = f"{hour.quarantined:,} in quarantine"
    if hour.quarantined:
        rejected += f" ({100 * hour.quarantined_share:.1f} %: {hour.describe_reasons()})"
    lag = describe_backlog(item.heartbeat) if item.heartbeat is not None else "no heartbeat"
    if item.heartbeat is not None and item.heartbeat.oldest_pending_at is not None:
        lag += f", the oldest for {format_duration(age_seconds(item.heartbeat.oldest_pending_at, now))}"
    lines = (
        f"{verdict.state} ({verdict.cause}) since {verdict.since:%Y-%m-%d %H:%M} UTC",
        f"last hour: {hour.events:,} events read, {hour.rows:,} rows landed, {rejected}",
        f"lag: {lag}",
        f"as of {now:%H:%M} UTC, by deltaworks__health",
    )
    return "\n".join(f"- {line}" for line in lines)[:MAX_CHARACTERS]


def group_run_note(items: Iterable[Report], now: datetime) -> str:
    """Returns the note of a run that several streams share: one line each, unhealthy ones first."""
    lines = []
    for item in sorted(items, key=lambda item: (not item.verdict.is_unhealthy, item.subject.name)):
        hour = item.throughput.last_hour(now)
        verdict = f"{item.verdict.state} ({item.verdict.cause})"
        lines.append(f"{item.subject.name}: {verdict}, {hour.rows:,} rows in the last hour")
    shown = [f"- {line}" for line in (*lines, f"as of {now:%H:%M} UTC, by deltaworks__health")]
    text = "\n".join(shown)
    while len(text) > MAX_CHARACTERS:
        # The last line is the time. Lines before it are dropped from the end, so healthy streams are dropped first.
        shown = [*shown[:-2], shown[-1]]
        text = "\n".join([*shown[:-1], f"- and {len(lines) - len(shown) + 1} more", shown[-1]])
    return text


def due_notes(reports: Iterable[Report], previous: Mapping[str, Verdict], now: datetime) -> list[tuple[str, str, str]]:
    """Returns the notes to write now as DAG, run and text. A stopped or paused stream gets a single note."""
    runs: dict[tuple[str, str], list[Report]] = {}
    for item in reports:
        dag_id, run_id = airflow_run_of(item.heartbeat.run if item.heartbeat else "")
        if item.subject.kind == "stream" and dag_id == item.subject.dag_id and run_id:
            runs.setdefault((dag_id, run_id), []).append(item)
    return [
        (dag_id, run_id, group_run_note(items, now) if items[0].subject.group else run_note(items[0], now))
        for (dag_id, run_id), items in runs.items()
        if any(_is_due(item, previous.get(item.subject.key), now) for item in items)
    ]


def _is_due(item: Report, before: Verdict | None, now: datetime) -> bool:
    has_changed = before is None or (before.state, before.cause) != (item.verdict.state, item.verdict.cause)
    is_idle = item.verdict.state in ("stopped", "paused")
    return has_changed or (now.minute % NOTE_INTERVAL_MINUTES == 0 and not is_idle)


def write_notes(notes: Iterable[tuple[str, str, str]], api: AirflowApi) -> None:
    """Writes notes. A run that Airflow no longer has is skipped.

    Raises:
        TransientError, ConfigError: Airflow does not answer or refuses.
    """
    for dag_id, run_id, text in notes:
        api.set_run_note(dag_id, run_id, text)
