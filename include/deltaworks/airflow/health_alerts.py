"""Alerts of the health DAG, raised and resolved by verdicts, missed schedules and the age of gold tables.

All functions are idempotent and safe to call from several processes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from deltaworks.airflow.job_alerts import last_success
from deltaworks.alerts.raising import alerts, open_subjects, raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.background import map_concurrently
from deltaworks.control.health.limits import format_duration
from deltaworks.control.health.verdicts import ROWS_QUARANTINED, Verdict, quarantine_next_step
from deltaworks.control.objects import ObjectStore
from deltaworks.errors.conditions import alert_for_verdict, next_step_for, verdict_alerts
from deltaworks.operations.gold import GoldState, gold_states
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.schedules import next_run

#: How long a run may take beyond its interval before it is overdue.
RUN_TIME_ALLOWANCE = timedelta(hours=1)
_SAMPLED_FIRINGS = 8
DATA_LOSS_NEAR = "DATA_LOSS_NEAR"


def alert_causes(verdict: Verdict) -> frozenset[str]:
    """Returns the alerts a verdict causes. DATA_LOSS_NEAR and ROWS_QUARANTINED apply to stopped streams too."""
    causes = {DATA_LOSS_NEAR} if verdict.loss_near else set()
    if verdict.quarantine_excess:
        causes.add(ROWS_QUARANTINED)
    if verdict.is_unhealthy:
        causes.add(alert_for_verdict(verdict.cause))
    return frozenset(causes)


def subject_of(verdict: Verdict) -> str:
    """Returns the subject of a verdict's alerts."""
    return f"{verdict.kind} {verdict.name}"


def alert_on_verdicts(objects: ObjectStore, verdicts: Iterable[Verdict], *, now: datetime) -> None:
    """Raises and resolves the alerts of all relays and streams.

    Also resolves alerts of relays and streams that are no longer declared. Safe from several processes.
    """
    verdict_causes = verdict_alerts()
    by_subject = {subject_of(verdict): verdict for verdict in verdicts}
    for alert in list(alerts(objects)):
        if alert.cause not in verdict_causes or not alert.state.is_open:
            continue
        verdict = by_subject.get(alert.subject)
        if verdict is None or alert.cause not in alert_causes(verdict):
            summary = f"It is {verdict.state}: {verdict.detail}" if verdict else "It is no longer declared."
            resolve_alert(objects, cause=alert.cause, subject=alert.subject, summary=summary, now=now)
    for subject, verdict in by_subject.items():
        for cause in alert_causes(verdict):
            raise_alert(
                objects,
                cause=cause,
                subject=subject,
                summary=_summary(verdict, cause),
                detail={
                    "cause": verdict.cause,
                    "since": verdict.since,
                    "next_step": _next_step(verdict, cause),
                    "time_left_seconds": verdict.time_left_seconds,
                },
                now=now,
            )


def _summary(verdict: Verdict, cause: str) -> str:
    """Returns the observation of a verdict and its next step, since a notification consists of one text."""
    step = _next_step(verdict, cause)
    return _observation(verdict, cause) + (f" Next: {step}" if step else "")


def _observation(verdict: Verdict, cause: str) -> str:
    if cause == ROWS_QUARANTINED:
        return verdict.quarantine_excess
    time_left_seconds = verdict.time_left_seconds
    if cause != DATA_LOSS_NEAR or time_left_seconds is None:
        return verdict.detail
    oldest = f"forgets the oldest that waits in {format_duration(time_left_seconds)}"
    if time_left_seconds <= 0:
        oldest = f"may have forgotten the oldest that waits, {format_duration(-time_left_seconds)} ago"
    return f"The source {oldest}. It is {verdict.state}: {verdict.detail}"


def _next_step(verdict: Verdict, cause: str) -> str:
    """Returns the next step of an alert. DATA_LOSS_NEAR has one that includes more than the verdict's own next step."""
    if cause == ROWS_QUARANTINED:
        return quarantine_next_step(verdict.name)
    if cause != DATA_LOSS_NEAR or verdict.cause == "SOURCE_EXPIRES":
        return verdict.next_step
    if verdict.state in ("stopped", "paused"):
        return f"Raise the source's retention now, or let it run again: `{verdict.next_step}`."
    return f"{next_step_for(cause)} {verdict.next_step}".strip()


def scheduled_jobs(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yields id and cron expression of every DAG of jobs with a schedule."""
    for pipeline, spec in catalog.pipelines.items():
        if spec.maintenance.schedule:
            yield dag_id(pipeline, "maintenance"), spec.maintenance.schedule
        if spec.gold.tables and spec.gold.schedule:
            yield dag_id(pipeline, "gold"), spec.gold.schedule
        if spec.mutations is not None and spec.mutations.schedule:
            yield dag_id(pipeline, "mutations"), spec.mutations.schedule
        if spec.models and spec.training.schedule:
            yield dag_id(pipeline, "models"), spec.training.schedule
    for relay, declared in catalog.relays.items():
        if declared.clean is not None:
            yield dag_id(relay, "clean"), declared.clean.schedule


def longest_interval(schedule: str, after: datetime) -> timedelta:
    """Returns the longest interval between the next firings of a cron expression, which may be uneven."""
    firings = [next_run(schedule, after)]
    while len(firings) < _SAMPLED_FIRINGS:
        firings.append(next_run(schedule, firings[-1]))
    return max(later - earlier for earlier, later in itertools.pairwise(firings))


def is_overdue(schedule: str, succeeded: datetime, now: datetime) -> bool:
    """Returns whether a job has missed two intervals, or one interval plus the allowed run time."""
    wait = longest_interval(schedule, succeeded)
    return now - succeeded > max(2 * wait, wait + RUN_TIME_ALLOWANCE)


def alert_on_overdue_jobs(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raises or resolves JOB_OVERDUE for every scheduled job; returns the overdue DAGs.

    Only a job's last success counts, because skipped and paused jobs leave no other trace.
    """
    late_before = open_subjects(objects, "JOB_OVERDUE")

    def check_job(job: tuple[str, str]) -> str:
        dag_id, schedule = job
        succeeded = last_success(objects, dag_id, now=now)
        if not is_overdue(schedule, succeeded, now):
            if dag_id in late_before:
                resolve_alert(objects, cause="JOB_OVERDUE", subject=dag_id, summary="It has succeeded.", now=now)
            return ""
        waited = format_duration((now - succeeded).total_seconds())
        raise_alert(
            objects,
            cause="JOB_OVERDUE",
            subject=dag_id,
            summary=f"{dag_id} ({schedule}) last succeeded {waited} ago.",
            detail={"schedule": schedule, "last_success": succeeded},
            now=now,
        )
        return dag_id

    return [dag_id for dag_id in map_concurrently(check_job, scheduled_jobs(catalog)) if dag_id]


def alert_on_stale_gold(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raises or resolves GOLD_STALE of every gold table for which landed rows wait, and returns the stale ones.

    A table without new input is not stale: its stream may be paused, or its producer silent.
    """
    stale_before = open_subjects(objects, "GOLD_STALE")

    def check_pipeline(spec: PipelineSpec) -> list[str]:
        states = gold_states(objects, spec, now=now, is_strict=True)
        _record_first_look(objects, spec.pipeline, states, now=now)
        return [
            f"{spec.pipeline}.{name}"
            for name, table in states.items()
            if _alert_on_gold(objects, f"{spec.pipeline}.{name}", table, stale_before, now=now)
        ]

    return list(itertools.chain.from_iterable(map_concurrently(check_pipeline, catalog.pipelines.values())))


def _alert_on_gold(objects: ObjectStore, subject: str, table: GoldState, before: set[str], *, now: datetime) -> bool:
    """Raises or resolves GOLD_STALE of one table; returns whether it is stale."""
    waits, stale_at = table.waiting_since, table.stale_at
    if waits is None or stale_at is None or now <= stale_at:
        if subject in before:
            summary = "No landed rows wait for it." if waits is None else "It is up to date."
            resolve_alert(objects, cause="GOLD_STALE", subject=subject, summary=summary, now=now)
        return False
    waited = (now - waits).total_seconds()
    built = "was never built" if table.fresh_at is None else f"was last up to date at {table.fresh_at:%Y-%m-%d %H:%M}"
    raise_alert(
        objects,
        cause="GOLD_STALE",
        subject=subject,
        summary=f"Rows that landed {format_duration(waited)} ago wait for {subject}, which {built}; they may wait "
        f"{table.max_age_minutes:g} min.",
        detail={"waiting_seconds": round(waited), "max_age_minutes": table.max_age_minutes},
        now=now,
    )
    return True


def _record_first_look(objects: ObjectStore, pipeline: str, states: Mapping[str, GoldState], *, now: datetime) -> None:
    """Records when each table with a promise was first seen that was never built: from then on its input waits."""
    for name, table in states.items():
        if table.max_age_minutes is None or table.fresh_at is not None:
            continue
        key = paths.gold_state(pipeline, name)
        stored, record = objects.get(key), dict[str, Any]()
        with contextlib.suppress(ValueError, TypeError):
            record = dict(json.loads(stored.data)) if stored else {}
        if not {"at", "seen_at"} & record.keys():
            data = json.dumps({**record, "seen_at": now.isoformat()}).encode()
            # A build may write its own record meanwhile, which is better.
            if stored is None:
                objects.put_if_absent(key, data)
            else:
                objects.put_if_match(key, data, stored.etag)
