"""What may be alerted on: each cause with its severity, the runbook page that says what to do, how often it is told.

One registry for streams, jobs and whatever else raises alerts. A cause is one line at the end; what is raised under
another name is refused, so that no alert can name a page that does not exist.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import Severity

#: From what nobody has to get up for to what somebody has to.
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A kind of alert.

    `runbook` is a page below docs with its anchor. After a notice that it was raised the next one waits for
    `cooldown_seconds`; while it stays open it is told again every `repeat_seconds`; and no subject of it gets more than
    `notices_per_hour`, whatever happens.
    """

    name: str
    severity: Severity
    runbook: str
    meaning: str
    cooldown_seconds: float = 900
    repeat_seconds: float = 4 * 3600
    notices_per_hour: int = 6


def rank(severity: Severity) -> int:
    """A number that grows with the severity."""
    return SEVERITIES.index(severity)


CAUSES: dict[str, Cause] = {}


def register(cause: Cause) -> Cause:
    """Make a cause known. The same one may be registered again.

    Raises:
        ValueError: the name is taken by another cause.
    """
    if CAUSES.setdefault(cause.name, cause) != cause:
        raise ValueError(f"{cause.name} is registered already, as another cause.")
    return cause


def _register(name: str, severity: Severity, runbook: str, meaning: str) -> None:
    register(Cause(name=name, severity=severity, runbook=runbook, meaning=meaning))


def cause_of(name: str) -> Cause:
    """The registered cause.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN with the nearest one.
    """
    if name in CAUSES:
        return CAUSES[name]
    nearest = difflib.get_close_matches(name, CAUSES, n=1, cutoff=0.4)
    raise ConfigError(
        "ALERT_CAUSE_UNKNOWN",
        f"No alert is registered as {name!r}.",
        hint=f"Did you mean {nearest[0]!r}?" if nearest else "Register it in deltaworks.alerts.causes.",
    )


# Streams and relays: what health finds of them.
_register("STREAM_UNHEALTHY", "critical", "alerts.md#a-stream-or-relay-is-unhealthy", "a stream or relay does not work")
_register("STREAM_HUNG", "critical", "alerts.md#a-stream-hangs", "its heartbeat is old though its task runs")
_register(
    "RESTARTS_EXHAUSTED", "critical", "alerts.md#a-stream-hangs", "a hung stream was started anew as often as allowed"
)
_register("BACKLOG_OLD", "warning", "alerts.md#the-backlog-is-old", "what waits has waited for too long")
_register("LOSS_NEAR", "critical", "alerts.md#the-source-is-about-to-forget", "the source's retention is about to pass")
_register("INPUT_SILENT", "warning", "alerts.md#no-input", "nothing has come in for longer than it ever does")
_register("STOPPED_BY_HAND", "warning", "alerts.md#ended-or-paused-by-hand", "ended or paused, and no stop asked")
_register("DATA_LOST", "critical", "alerts.md#data-is-missing", "objects, messages or records are gone or undelivered")
_register("TABLE_SUSPENDED", "warning", "operating.md#a-table-is-suspended", "a table's commits fail and are held")

# Jobs: maintenance, gold, mutations, reprocess, cleaning.
_register("JOB_FAILED", "warning", "alerts.md#a-job-failed", "a task of a job failed after all its tries")
_register("JOB_OVERDUE", "warning", "alerts.md#a-job-is-overdue", "a job on schedule has not ended well for too long")
_register("MAINTENANCE_OVERLAP", "warning", "operating.md#maintenance", "two maintenance runs met; one was refused")
_register("TABLE_NOT_VACUUMED", "warning", "alerts.md#a-table-is-not-vacuumed", "VACUUM leaves a table out")
_register("DEADLINE_MISSED", "warning", "alerts.md#a-job-is-overdue", "a run did not end by its deadline")
_register("MUTATIONS_BEHIND", "warning", "operating.md#mutations", "mutation requests have waited for too long")
_register("GOLD_CHECK_FAILED", "warning", "alerts.md#a-gold-check-failed", "an answer broke its checks")
_register("GOLD_STALE", "warning", "alerts.md#gold-is-stale", "a gold table is older than it declares")

# The watch itself.
_register("HEALTH_SILENT", "critical", "alerts.md#nobody-watches", "the health check has not run for too long")
_register("CHANNEL_FAILING", "warning", "alerts.md#a-channel-fails", "notices cannot be delivered; they are kept")
_register("CONTROL_UNREADABLE", "critical", "alerts.md#nobody-watches", "the control area does not answer")
