"""Hands what a rule's state has in its outbox to the alerts, each once, however often it is handed over."""

from __future__ import annotations

from collections.abc import Iterable

from deltaworks.alerts.raising import raise_alert, read_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.stored_state import AlertEvent


def deliver(objects: ObjectStore, outbox: Iterable[AlertEvent]) -> None:
    """Raise and resolve what is told, in order. One that dies in between is followed by another, which begins anew: an
    episode that the alert has already seen the end of is not raised a second time.

    Raises:
        ConcurrencyError: ALERT_CONTENDED; TransientError: the control area does not answer. The outbox stays, for another
            try.
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
