"""Hands what a rule's state has in its outbox to the alerts, each once, however often it is handed over."""

from __future__ import annotations

from collections.abc import Iterable

from deltaworks.alerts.raising import raise_alert, read_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.states import TellingRecord


def deliver(objects: ObjectStore, outbox: Iterable[TellingRecord]) -> None:
    """Raise and resolve what is told, in order. One that dies in between is followed by another, which begins anew: an
    episode that the alert has already seen the end of is not raised a second time.

    Raises:
        ConcurrencyError: ALERT_BUSY; TransientError: the control area does not answer. The outbox stays, for another
            try.
    """
    for telling in outbox:
        if telling.kind == "resolve":
            resolve_alert(objects, cause=telling.cause, subject=telling.subject, summary=telling.summary)
        elif not _is_over(objects, telling):
            raise_alert(
                objects,
                cause=telling.cause,
                subject=telling.subject,
                summary=telling.summary,
                severity=telling.severity,
                detail=telling.detail,
            )


def _is_over(objects: ObjectStore, telling: TellingRecord) -> bool:
    stored = read_alert(objects, cause=telling.cause, subject=telling.subject)
    if stored is None or stored.standing.open:
        return False
    return stored.detail.get("episode") == telling.detail.get("episode")
