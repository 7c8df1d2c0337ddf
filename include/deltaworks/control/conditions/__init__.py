"""Catalog of conditions: every error condition, every cause of a health verdict and every alert, one row each.

The alert of a condition, and the tables in docs/reference/conditions.md and docs/reference/alerts.md, are derived from
these rows (`deltaworks.control.conditions.docs_tables` writes the tables).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from deltaworks.control.conditions.alerts import ERASURES, JOBS, MONITORING, OUTBOUND, RULES, STREAMS
from deltaworks.control.conditions.collector import COLLECTOR
from deltaworks.control.conditions.data import DATA
from deltaworks.control.conditions.declarations import DECLARATIONS
from deltaworks.control.conditions.definitions import SEVERITIES, AlertCause, Condition, severity_rank
from deltaworks.control.conditions.erasure import ERASURE
from deltaworks.control.conditions.health import HEALTH
from deltaworks.control.conditions.outbound import OUTBOUND_CONDITIONS
from deltaworks.control.conditions.privacy import PRIVACY
from deltaworks.control.conditions.recovery import RECOVERY
from deltaworks.control.conditions.runtime import RUNTIME
from deltaworks.control.conditions.stack import STACK
from deltaworks.control.conditions.vault import VAULT
from deltaworks.errors import ConfigError

__all__ = [
    "ALERTS",
    "CONDITIONS",
    "HEALTH_CAUSES",
    "SEVERITIES",
    "AlertCause",
    "Condition",
    "alert_for_failure",
    "alert_for_verdict",
    "failure_alerts",
    "verdict_alerts",
    "get_alert_cause",
    "index_by_code",
    "next_step_for",
    "severity_rank",
]

Row = TypeVar("Row", Condition, AlertCause)


def index_by_code(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, Row]:
    """Indexes rows by code.

    Raises:
        ValueError: two rows have the same code.
    """
    table: dict[str, Row] = {}
    for row in rows:
        if table.setdefault(key(row), row) is not row:
            raise ValueError(f"Two rows are called {key(row)}.")
    return table


def _code(row: Condition) -> str:
    return row.code


#: Causes of health verdicts.
HEALTH_CAUSES: Final[dict[str, Condition]] = index_by_code(HEALTH, _code)

#: Conditions of errors and warnings; a few are causes of verdicts as well.
CONDITIONS: Final[dict[str, Condition]] = index_by_code(
    (
        row
        for row in (
            *(*DECLARATIONS, *DATA, *RECOVERY, *RUNTIME, *OUTBOUND_CONDITIONS),
            *(*STACK, *COLLECTOR, *PRIVACY, *VAULT, *ERASURE, *HEALTH),
        )
        if row.error is not None
    ),
    _code,
)

#: All alerts, by name.
ALERTS: Final[dict[str, AlertCause]] = index_by_code(
    (*STREAMS, *JOBS, *RULES, *OUTBOUND, *ERASURES, *MONITORING), lambda row: row.name
)
_JOB_ALERTS: Final = frozenset(alert.name for alert in JOBS)


def get_alert_cause(name: str) -> AlertCause:
    """Returns the row of an alert.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN with the closest name.
    """
    if name in ALERTS:
        return ALERTS[name]
    nearest = difflib.get_close_matches(name, ALERTS, n=1, cutoff=0.4)
    raise ConfigError(
        "ALERT_CAUSE_UNKNOWN",
        f"No alert is called {name!r}.",
        hint=f"Did you mean {nearest[0]!r}?" if nearest else "Add a row to deltaworks.control.conditions.alerts.",
    )


def alert_for_failure(condition: str | None) -> str:
    """Returns the alert that a failed job raises."""
    row = CONDITIONS.get(condition or "")
    return row.alert if row is not None and row.alert in _JOB_ALERTS else "JOB_FAILED"


def alert_for_verdict(cause: str) -> str:
    """Returns the alert of an unhealthy verdict, whose cause is one of the health check or a condition from the
    heartbeat.
    """
    row = HEALTH_CAUSES.get(cause)
    return row.alert if row is not None and row.alert is not None else "STREAM_UNHEALTHY"


def next_step_for(cause: str) -> str:
    """Returns the general next step of an alert or verdict cause; empty for unknown causes."""
    if cause in ALERTS and ALERTS[cause].next_step:
        return ALERTS[cause].next_step
    row = HEALTH_CAUSES.get(cause) or CONDITIONS.get(cause)
    return "" if row is None else f"{row.next_step[:1].upper()}{row.next_step[1:]}."


def failure_alerts() -> frozenset[str]:
    """Returns every alert that failed jobs raise and successful ones resolve."""
    return frozenset(alert_for_failure(condition) for condition in CONDITIONS)


def verdict_alerts() -> frozenset[str]:
    """Returns every alert that unhealthy verdicts raise."""
    return frozenset(alert_for_verdict(cause) for cause in (*HEALTH_CAUSES, *CONDITIONS))
