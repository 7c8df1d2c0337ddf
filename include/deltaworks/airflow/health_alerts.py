"""Turns verdicts into alerts: raises what a verdict says is wrong, and resolves what it no longer says."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from deltaworks.alerts.raising import alerts, raise_alert, resolve_alert
from deltaworks.control.health.judge import Verdict
from deltaworks.control.health.limits import duration
from deltaworks.control.objects import ObjectStore

#: The alert of a verdict's cause; of any other unhealthy one it is STREAM_UNHEALTHY.
_ALERTS = {
    "HEARTBEAT_STALE": "STREAM_HUNG",
    "BACKLOG_OLD": "BACKLOG_OLD",
    "INPUT_SILENT": "INPUT_SILENT",
    "PAUSED_WITHOUT_STOP": "STOPPED_BY_HAND",
    "DEAD_LETTERS": "DATA_LOST",
    "FILES_LOST": "DATA_LOST",
    "RECORDS_LOST": "DATA_LOST",
    "TABLE_SUSPENDED": "TABLE_SUSPENDED",
}
_EXPIRES = "SOURCE_EXPIRES"
OF_VERDICTS = frozenset({*_ALERTS.values(), "STREAM_UNHEALTHY", "LOSS_NEAR"})


def alerts_of(verdict: Verdict) -> frozenset[str]:
    """The alerts that a verdict calls for. That time runs out is told of one that was stopped on purpose too."""
    found = {"LOSS_NEAR"} if verdict.loss_near else set()
    if verdict.unhealthy and verdict.cause != _EXPIRES:
        found.add(_ALERTS.get(verdict.cause, "STREAM_UNHEALTHY"))
    return frozenset(found)


def subject_of(verdict: Verdict) -> str:
    """What alerts call it."""
    return f"{verdict.kind} {verdict.name}"


def tell_verdicts(objects: ObjectStore, verdicts: Iterable[Verdict], *, now: datetime) -> None:
    """Raise and resolve the alerts of all relays and streams; alerts of those that are declared no more end too.

    Safe from several processes at once.
    """
    by_subject = {subject_of(verdict): verdict for verdict in verdicts}
    for alert in list(alerts(objects)):
        if alert.cause not in OF_VERDICTS or not alert.standing.open:
            continue
        verdict = by_subject.get(alert.subject)
        if verdict is None or alert.cause not in alerts_of(verdict):
            summary = f"It is {verdict.state}: {verdict.detail}" if verdict else "It is declared no more."
            resolve_alert(objects, cause=alert.cause, subject=alert.subject, summary=summary, now=now)
    for subject, verdict in by_subject.items():
        for cause in alerts_of(verdict):
            raise_alert(
                objects,
                cause=cause,
                subject=subject,
                summary=_summary(verdict, cause),
                detail={
                    "cause": verdict.cause,
                    "since": verdict.since,
                    "next_step": verdict.next_step,
                    "time_left_seconds": verdict.time_left_seconds,
                },
                now=now,
            )


def _summary(verdict: Verdict, cause: str) -> str:
    if cause != "LOSS_NEAR" or verdict.time_left_seconds is None:
        return f"{verdict.detail} Next: {verdict.next_step}"
    left = verdict.time_left_seconds
    until = f"in {duration(left)}" if left > 0 else f"since {duration(-left)}"
    return f"The source forgets the oldest that waits {until}. It is {verdict.state}: {verdict.detail}"
