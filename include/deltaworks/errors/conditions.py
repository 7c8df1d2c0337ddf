"""Catalog of conditions: every error condition, every cause of a health verdict and every alert.

`conditions.json` is the catalog: to add a condition or an alert, add it there. It is read when the first next step or
alert is looked up. `deltaworks.errors.docs_tables` writes the tables of the reference pages from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from deltaworks.errors import Severity, hint_for, read_catalog

#: In ascending order. The severities ask for no action, action in working hours, and immediate action.
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


def severity_rank(severity: Severity) -> int:
    """Returns a number that grows with the severity."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One code of an error, a warning or a health verdict.

    A condition with `error`, a class name, is raised by errors of that class; one of `health` is a cause of verdicts;
    a code may be both. `meaning` and `next_step` are short texts in Markdown, as docs/reference/conditions.md shows
    them.

    The alert of the condition is named by `alert`. Without it, a job that fails with this condition raises JOB_FAILED,
    a stream whose heartbeat reports it raises STREAM_UNHEALTHY, and a healthy verdict raises nothing. A `runbook` is a
    page below docs, optionally with a heading's anchor. `retryable` is set where it differs from the error class.
    """

    code: str
    meaning: str
    next_step: str
    error: str | None = None
    alert: str | None = None
    runbook: str = ""
    retryable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCause:
    """One kind of alert: severity, runbook (page and heading below docs), and limits of its notifications.

    After a raising notification the next one waits for `cooldown_seconds`; an open alert is repeated every
    `repeat_seconds`; a subject gets at most `max_notifications_per_hour`. `next_step` is used if the alert has none of
    its own: one sentence. With `is_event` its notifications report what happened, and none of them ends it.
    """

    name: str
    severity: Severity
    runbook: str
    meaning: str
    cooldown_seconds: float = 900
    repeat_seconds: float = 4 * 3600
    max_notifications_per_hour: int = 6
    next_step: str = ""
    is_event: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All conditions of errors and warnings, causes of health verdicts, and alerts, by code. Some codes are a condition
    and a cause. Jobs that fail raise one of `job_alerts`.
    """

    conditions: Mapping[str, Condition]
    health_causes: Mapping[str, Condition]
    alerts: Mapping[str, AlertCause]
    job_alerts: frozenset[str]


@cache
def catalog() -> Catalog:
    """Returns the catalog; it is read once per process."""
    raw = read_catalog()
    conditions = {
        code: Condition(code=code, error=error, **row)
        for error, rows in raw["errors"].items()
        for code, row in rows.items()
    }
    causes = {code: Condition(code=code, **row) for code, row in raw["health"].items()}
    alerts = {name: AlertCause(name=name, **row) for rows in raw["alerts"].values() for name, row in rows.items()}
    return Catalog(
        conditions=conditions | {code: cause for code, cause in causes.items() if cause.error is not None},
        health_causes=causes,
        alerts=alerts,
        job_alerts=frozenset(raw["alerts"]["jobs"]),
    )


def alert_for_failure(condition: str | None) -> str:
    """Returns the alert that a failed job raises."""
    row = catalog().conditions.get(condition or "")
    return row.alert if row is not None and row.alert in catalog().job_alerts else "JOB_FAILED"


def alert_for_verdict(cause: str) -> str:
    """Returns the alert of an unhealthy verdict, whose cause is one of the health check or a condition from the
    heartbeat.
    """
    row = catalog().health_causes.get(cause)
    return row.alert if row is not None and row.alert is not None else "STREAM_UNHEALTHY"


def next_step_for(cause: str) -> str:
    """Returns the general next step of an alert, a verdict's cause or an error's condition; empty for unknown ones."""
    alert = catalog().alerts.get(cause)
    if alert is not None and alert.next_step:
        return alert.next_step
    return hint_for(cause)


def failure_alerts() -> frozenset[str]:
    """Returns every alert that failed jobs raise and successful ones resolve."""
    return frozenset(alert_for_failure(condition) for condition in catalog().conditions)


def verdict_alerts() -> frozenset[str]:
    """Returns every alert that unhealthy verdicts raise."""
    return frozenset(alert_for_verdict(cause) for cause in (*catalog().health_causes, *catalog().conditions))
