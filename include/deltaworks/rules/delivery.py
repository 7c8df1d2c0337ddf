"""Delivers alert events from a rule's outbox, each once."""

from __future__ import annotations

from collections.abc import Iterable

from deltaworks.alerts.raising import raise_alert, read_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.stored_state import AlertEvent


def deliver(objects: ObjectStore, outbox: Iterable[AlertEvent]) -> None:
    """Raises and resolves alerts in order.

    May be repeated after a failure: an episode that was resolved before is not raised again.

    Raises:
        ConcurrencyError: ALERT_CONTENDED. The outbox is kept for a retry.
        TransientError: the control storage is unreachable. The outbox is kept for a retry.
    """
    for event in outbox:
        if event.kind == "resolve":
            resolve_alert(objects, cause=event.cause, subject=event.subject, summary=event.summary)
        elif not _was_resolved(objects, event):
            raise_alert(
                objects,
                cause=event.cause,
                subject=event.subject,
                summary=event.summary,
                severity=event.severity,
                detail=event.detail,
            )


def _was_resolved(objects: ObjectStore, event: AlertEvent) -> bool:
    stored = read_alert(objects, cause=event.cause, subject=event.subject)
    if stored is None or stored.state.is_open:
        return False
    return stored.detail.get("episode") == event.detail.get("episode")
