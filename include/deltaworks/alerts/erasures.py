"""Alerts on erasure requests that are due or overdue, from their records alone.

Deleted files are kept for the retention of VACUUM, so the last possible time for a purge is the deadline minus this
retention. A request whose rows still exist is due early enough to act, not only on the last day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.erasure import ErasureRequest, Erasures
from deltaworks.control.summaries.base import log_failures
from deltaworks.control.summaries.erasures import publish_requests
from deltaworks.errors import Severity
from deltaworks.errors.conditions import next_step_for
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec

DUE, OVERDUE = "ERASURE_DUE", "ERASURE_OVERDUE"
#: Time left for the purge, in addition to the retention, at which alerts are raised.
_WARN: Final = timedelta(hours=48)
_CRITICAL: Final = timedelta(hours=72)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureFinding:
    """The alert on a request: cause, severity and text."""

    cause: str
    severity: Severity
    summary: str


def check_erasure(request: ErasureRequest, *, retention: timedelta, now: datetime) -> ErasureFinding | None:
    """Checks the deadlines of a request. Returns None if it is complete or has time left. Pure.

    Args:
        retention: how long files with deleted rows are kept.
    """
    if not request.is_open:
        return None
    purged = request.has_reached("purged")
    deadlines = {"purge_by": request.purge_by, "deadline_at": request.deadline_at}
    return check_deadline(request.state, is_purged=purged, retention=retention, now=now, **deadlines)


def check_deadline(
    state: str, *, is_purged: bool, purge_by: datetime, deadline_at: datetime, retention: timedelta, now: datetime
) -> ErasureFinding | None:
    """Checks the deadlines of an open request. Returns None if it has time left. Pure."""
    remaining_time = deadline_at - now
    where = f"State {state}, due by {deadline_at:%Y-%m-%d %H:%M} UTC"
    if remaining_time <= timedelta():
        return ErasureFinding(cause=OVERDUE, severity="critical", summary=f"{where}: the deadline has passed.")
    if remaining_time < _CRITICAL:
        return ErasureFinding(
            cause=DUE, severity="critical", summary=f"{where}, in {remaining_time.total_seconds() / 3600:.0f} h."
        )
    if not is_purged and (remaining_time < retention + _WARN or now > purge_by):
        hours = retention.total_seconds() / 3600
        text = f"{where}; the rows are still in the tables, and their files are kept for another {hours:.0f} h."
        return ErasureFinding(cause=DUE, severity="warning", summary=text)
    return None


def alert_on_erasures(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raises and resolves the alerts of all requests, and updates the summaries for the console. Idempotent.

    Returns the subjects of requests that are due or overdue.

    Raises:
        ContractError: ERASURE_UNREADABLE.
    """
    by_cause: dict[str, dict[str, ErasureFinding]] = {DUE: {}, OVERDUE: {}}
    for request, retention in _requests(objects, catalog):
        finding = check_erasure(request, retention=retention, now=now)
        if finding is not None:
            by_cause[finding.cause][f"{request.namespace} {request.request_id}"] = finding
    for cause, findings in by_cause.items():
        for subject in open_subjects(objects, cause):
            if subject not in findings:
                resolve_alert(objects, cause=cause, subject=subject, now=now)
        for subject, finding in findings.items():
            raise_alert(
                objects,
                cause=cause,
                subject=subject,
                summary=finding.summary,
                detail={"next_step": next_step_for_namespace(cause, subject.partition(" ")[0])},
                severity=finding.severity,
                now=now,
            )
    return sorted({subject for findings in by_cause.values() for subject in findings})


def next_step_for_namespace(cause: str, namespace: str) -> str:
    """Returns the advice of an erasure alert with the namespace filled in."""
    return next_step_for(cause).replace("NAMESPACE", namespace)


def _requests(objects: ObjectStore, catalog: Catalog) -> Iterator[tuple[ErasureRequest, timedelta]]:
    for namespace, pipelines in catalog.namespaces.items():
        requests = list(Erasures(objects, namespace).all_requests())
        with log_failures(f"The summary of erasures of {namespace}"):
            publish_requests(objects, namespace, [request.summary_row() for request in requests])
        for request in requests:
            if request.is_open:
                yield request, retention_of(pipelines)


def retention_of(pipelines: Iterable[PipelineSpec]) -> timedelta:
    """Returns how long files with deleted rows of a namespace are kept."""
    return timedelta(hours=max(spec.maintenance.file_retention_hours for spec in pipelines))
