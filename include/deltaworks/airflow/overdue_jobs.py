"""Judges jobs on schedule by when they last came to their end: one that is skipped or paused gives no other sign."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta

from deltaworks.airflow import names
from deltaworks.airflow.job_alerts import last_success
from deltaworks.alerts import raise_alert, resolve_alert
from deltaworks.control.health.limits import duration
from deltaworks.control.objects import ObjectStore
from deltaworks.specs.catalog import Catalog

#: A run may take this long beyond its interval before it counts as overdue.
RUN_TIME = timedelta(hours=1)
_FIRINGS = 8


def scheduled_jobs(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Every DAG of jobs that has a schedule, with its cron expression."""
    for pipeline, spec in catalog.pipelines.items():
        if spec.maintenance.schedule:
            yield names.maintenance_dag_id(pipeline), spec.maintenance.schedule
        if spec.gold.tables and spec.gold.schedule:
            yield names.gold_dag_id(pipeline), spec.gold.schedule
        if spec.mutations is not None and spec.mutations.schedule:
            yield names.mutation_dag_id(pipeline), spec.mutations.schedule
    for relay, declared in catalog.relays.items():
        if declared.clean is not None:
            yield names.clean_dag_id(relay), declared.clean.schedule


def longest_wait(schedule: str, after: datetime) -> timedelta:
    """The longest time between two firings of a cron expression, of the next ones."""
    from croniter import croniter

    times = croniter(schedule, after)
    firings: list[datetime] = [times.get_next(datetime) for _ in range(_FIRINGS)]
    return max(later - earlier for earlier, later in itertools.pairwise(firings))


def is_overdue(schedule: str, succeeded: datetime, now: datetime) -> bool:
    """Whether a job has missed two of its intervals, or one and the time a run may take."""
    wait = longest_wait(schedule, succeeded)
    return now - succeeded > max(2 * wait, wait + RUN_TIME)


def tell_overdue(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raise and resolve JOB_OVERDUE of every job on schedule; those that are overdue."""
    overdue = []
    for dag_id, schedule in scheduled_jobs(catalog):
        succeeded = last_success(objects, dag_id, now=now)
        if not is_overdue(schedule, succeeded, now):
            resolve_alert(objects, cause="JOB_OVERDUE", subject=dag_id, summary="It has come to its end.", now=now)
            continue
        overdue.append(dag_id)
        waited = duration((now - succeeded).total_seconds())
        raise_alert(
            objects,
            cause="JOB_OVERDUE",
            subject=dag_id,
            summary=f"{dag_id} ({schedule}) last came to its end {waited} ago.",
            detail={"schedule": schedule, "last_success": succeeded},
            now=now,
        )
    return overdue
