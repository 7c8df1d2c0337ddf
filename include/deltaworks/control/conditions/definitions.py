"""Row types of the catalog of conditions: `Condition` and `AlertCause`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from deltaworks.errors import DeltaworksError
from deltaworks.specs.environment import Severity

#: In ascending order. The severities ask for no action, action in working hours, and immediate action.
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


def severity_rank(severity: Severity) -> int:
    """Returns a number that grows with the severity."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True)
class Condition:
    """One code of an error, a warning or a health verdict.

    A row with `error` is a condition of errors of that class; a row of `health` is a cause of verdicts; a code may be
    both. Each `meaning` and `next_step` is one sentence in Markdown, as docs/reference/conditions.md shows it.

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


@dataclass(frozen=True, slots=True)
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


def conditions_of(error: type[DeltaworksError], *rows: Condition) -> tuple[Condition, ...]:
    """Returns the rows with `error` set as their error class."""
    return tuple(replace(row, error=error) for row in rows)
