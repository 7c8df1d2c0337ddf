"""The rows of the table of troubles: what can go wrong (`Trouble`) and what people are alerted on (`AlertCause`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from deltaworks.errors import DeltaworksError
from deltaworks.specs.environment import Severity

#: In ascending order: nobody has to act; act in working hours; act now.
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


def severity_rank(severity: Severity) -> int:
    """A number that grows with the severity."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True)
class Condition:
    """One code that an error, a warning or a health verdict carries.

    A row with `error` is the condition of errors of that class; a row of `health` is the cause of a verdict; a code may
    be both. `meaning` and `next_step` are one sentence each, in Markdown, as docs/reference/conditions.md shows them.

    `alert` names the row of the alert that reports it. Without one, a job that fails with this condition raises
    JOB_FAILED, a stream whose heartbeat reports it STREAM_UNHEALTHY, and a verdict that is not unhealthy nothing.
    `runbook` is a page below docs, with the anchor of a heading where one is meant. `default_retryable` overrides that
    of `error`.
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
        """Whether a retry can succeed, where the error that is raised does not say otherwise."""
        if self.default_retryable is not None:
            return self.default_retryable
        return self.error is not None and self.error.default_retryable


@dataclass(frozen=True, slots=True)
class AlertCause:
    """A kind of alert: how severe it is, the runbook (page and heading below docs), and how often people are notified.

    After a notification of its raising the next one waits for `cooldown_seconds`; while the alert stays open it is repeated
    every `repeat_seconds`; and no subject gets more than `max_notifications_per_hour`. `next_step` is what to do where whoever
    raises it does not say so: one sentence.
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
    """The rows as conditions of that class of error."""
    return tuple(replace(row, error=error) for row in rows)
