"""Catalog of conditions: every error condition, every cause of a health verdict and every alert.

`conditions.json` is the catalog: to add a condition or an alert, add it there. It is read when the first next step or
alert is looked up. `deltaworks.errors.docs_tables` writes the tables of the reference pages from it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from deltaworks import errors
from deltaworks.errors import ConfigError, DeltaworksError

Severity = Literal["info", "warning", "critical"]
#: In ascending order. The severities ask for no action, action in working hours, and immediate action.
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def severity_rank(severity: Severity) -> int:
    """Returns a number that grows with the severity."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One code of an error, a warning or a health verdict.

    A condition with `error` is raised by errors of that class; one of `health` is a cause of verdicts; a code may be
    both. `meaning` and `next_step` are short texts in Markdown, as docs/reference/conditions.md shows them.

    The alert of the condition is named by `alert`. Without it, a job that fails with this condition raises JOB_FAILED,
    a stream whose heartbeat reports it raises STREAM_UNHEALTHY, and a healthy verdict raises nothing. A `runbook` is a
    page below docs, optionally with a heading's anchor. If set, `default_retryable` overrides the default of `error`.
    """

    code: str
    meaning: str
    next_step: str
    error: type[DeltaworksError] | None = None
    alert: str | None = None
    runbook: str = ""
    default_retryable: bool | None = None

    @property
    def retryable(self) -> bool:
        """Whether a retry can succeed, unless the raised error says otherwise."""
        if self.default_retryable is not None:
            return self.default_retryable
        return self.error is not None and self.error.default_retryable

    @property
    def hint(self) -> str:
        """The next step as plain sentences, for an error or a notification."""
        text = _LINK.sub(r"\1 (docs/\2)", self.next_step)
        return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCause:
    """One kind of alert: severity, runbook (page and heading below docs), and limits of its notifications.

    After a raising notification the next one waits for `cooldown_seconds`; an open alert is repeated every
    `repeat_seconds`; a subject gets at most `max_notifications_per_hour`. `next_step` is used if the alert has none of
    its own: one sentence.
    """

    name: str
    severity: Severity
    runbook: str
    meaning: str
    cooldown_seconds: float = 900
    repeat_seconds: float = 4 * 3600
    max_notifications_per_hour: int = 6
    next_step: str = ""


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
    # Raising an error, and importing this module, need no resource reader.
    from importlib.resources import files

    raw: dict[str, Any] = json.loads(files("deltaworks.errors").joinpath("conditions.json").read_bytes())
    conditions = {
        code: _condition(code, row | {"error": error})
        for error, rows in raw["errors"].items()
        for code, row in rows.items()
    }
    causes = {code: _condition(code, row) for code, row in raw["health"].items()}
    alerts = {name: AlertCause(name=name, **row) for rows in raw["alerts"].values() for name, row in rows.items()}
    return Catalog(
        conditions=conditions | {code: cause for code, cause in causes.items() if cause.error is not None},
        health_causes=causes,
        alerts=alerts,
        job_alerts=frozenset(raw["alerts"]["jobs"]),
    )


def _condition(code: str, row: dict[str, Any]) -> Condition:
    error = row.get("error")
    return Condition(code=code, **row | {"error": error and getattr(errors, error)})


def get_alert_cause(name: str) -> AlertCause:
    """Returns an alert of the catalog.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN with the closest name.
    """
    alerts = catalog().alerts
    if name in alerts:
        return alerts[name]
    nearest = difflib.get_close_matches(name, alerts, n=1, cutoff=0.4)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigError("ALERT_CAUSE_UNKNOWN", f"No alert is called {name!r}.", hint=hint)


def alert_for_failure(condition: str | None) -> str:
    """Returns the alert that a failed job raises."""
    found = catalog().conditions.get(condition or "")
    return found.alert if found is not None and found.alert in catalog().job_alerts else "JOB_FAILED"


def alert_for_verdict(cause: str) -> str:
    """Returns the alert of an unhealthy verdict, whose cause is one of the health check or a condition from the
    heartbeat.
    """
    found = catalog().health_causes.get(cause)
    return found.alert if found is not None and found.alert is not None else "STREAM_UNHEALTHY"


def next_step_for(cause: str) -> str:
    """Returns the general next step of an alert, a verdict's cause or an error's condition; empty for unknown ones."""
    alert = catalog().alerts.get(cause)
    if alert is not None and alert.next_step:
        return alert.next_step
    return hint_for(cause)


def hint_for(code: str) -> str:
    """Returns the general next step of a condition; empty for unknown ones."""
    found = catalog().health_causes.get(code) or catalog().conditions.get(code)
    return "" if found is None else found.hint


def failure_alerts() -> frozenset[str]:
    """Returns every alert that failed jobs raise and successful ones resolve."""
    return frozenset(alert_for_failure(condition) for condition in catalog().conditions)


def verdict_alerts() -> frozenset[str]:
    """Returns every alert that unhealthy verdicts raise."""
    return frozenset(alert_for_verdict(cause) for cause in (*catalog().health_causes, *catalog().conditions))
