"""Raises and resolves alerts. One object per cause and subject holds the state, replaced by compare-and-swap.

If two processes raise the same alert at the same time, only one sends the notification, since the second writer reads
the state of the first. A notification is part of the write that decides on it (`outbox`), so none is lost. It is then
copied to the spool, from which `deltaworks.alerts.sending` delivers it. This module does not access channels.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field

from deltaworks.alerts.notification import (
    AlertState,
    Notification,
    NotificationKind,
    notification_id,
    truncate_detail,
    update_state,
    without_cooldown,
)
from deltaworks.alerts.silences import Silence, active_silence, expired_silences, mark_ended, silences
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import ConcurrencyError, ConfigError, Severity
from deltaworks.errors.conditions import AlertCause, catalog

_MAX_ATTEMPTS = 20
_MAX_NAME_LENGTH = 120


class Alert(StateRecord):
    """One alert as stored: state, texts, and the notifications that are not yet in the spool (`outbox`)."""

    cause: str
    subject: str
    state: AlertState = AlertState()
    summary: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)
    runbook: str = ""
    last_raised_at: str = ""
    outbox: tuple[Notification, ...] = ()
    format: Literal[1] = 1


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


def raise_alert(
    objects: ObjectStore,
    *,
    cause: str,
    subject: str,
    summary: str,
    severity: Severity | None = None,
    detail: Mapping[str, Any] | None = None,
    runbook: str | None = None,
    now: datetime | None = None,
) -> Notification | None:
    """Raises an alert for `subject`. Idempotent: at most one alert is open per cause and subject.

    Safe for concurrent use. The first notification is sent immediately, later ones after cooldowns and within the
    limits of the cause, see `deltaworks.errors.conditions`.

    Args:
        severity: overrides the severity of the cause.
        detail: plain data for diagnosis; long texts are truncated.
        runbook: overrides the runbook of the cause.

    Returns:
        The notification, which is now in the spool; None if no notification is due.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN.
        ConcurrencyError: ALERT_CONTENDED; TransientError: the control storage does not answer.
    """
    kind = get_alert_cause(cause)
    now = now or utc_now()
    # Lone surrogates cannot be sent.
    summary = summary.encode("utf-8", "replace").decode()
    raised_at, truncated = now.isoformat(timespec="milliseconds"), truncate_detail(detail or {})
    return _update_alert(
        objects,
        kind,
        subject,
        severity=severity or kind.severity,
        now=now,
        update=lambda alert: alert.replace(
            last_raised_at=raised_at, summary=summary, detail=truncated, runbook=runbook or kind.runbook
        ),
    )


def resolve_alert(
    objects: ObjectStore, *, cause: str, subject: str, summary: str = "", now: datetime | None = None
) -> Notification | None:
    """Resolves an alert. Writes nothing if it is not open.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN.
        ConcurrencyError: ALERT_CONTENDED; TransientError: the control storage does not answer.
    """
    kind = get_alert_cause(cause)
    return _update_alert(
        objects,
        kind,
        subject,
        severity=None,
        now=now or utc_now(),
        update=lambda alert: alert.replace(summary=summary or alert.summary),
    )


def flush_alerts(objects: ObjectStore, *, now: datetime | None = None, keep_days: float = 30) -> list[Notification]:
    """Sends suppressed notifications that are still true, spools those of crashed processes, and deletes old alerts.

    Alerts are deleted `keep_days` after their end. Run it about every minute; safe for concurrent use. Returns the
    notifications.
    """
    now = now or utc_now()
    notifications = []
    # Read once for all alerts; a silence created meanwhile applies from the next run on.
    stored = silences(objects)
    expired = expired_silences(objects, stored, now=now)
    for alert in alerts(objects):
        kind, state = catalog().alerts.get(alert.cause), alert.state
        if kind is None:
            continue
        severity = state.severity if state.is_open else None
        silence_ended = any(silence.covers(alert.cause, alert.subject) for silence in expired)
        update = _after_silence if silence_ended else _unchanged
        notification = _update_alert(
            objects,
            kind,
            alert.subject,
            severity=severity,
            now=now,
            update=_unchanged,
            prepare=update,
            silences_now=lambda: stored,
        )
        if notification is not None:
            notifications.append(notification)
        if _is_finished(alert) and state.since is not None and now - state.since > timedelta(days=keep_days):
            objects.delete(alert_key(alert.cause, alert.subject))
    # Done last: if this process dies earlier, the next run handles the silence.
    for silence in expired:
        mark_ended(objects, silence, now=now)
    return notifications


def _unchanged(alert: Alert) -> Alert:
    return alert


def _after_silence(alert: Alert) -> Alert:
    return alert.replace(state=without_cooldown(alert.state))


def alerts(objects: ObjectStore) -> Iterator[Alert]:
    """Yields every stored alert, open or recently ended. Unreadable objects are skipped."""
    for key in objects.list(paths.alerts("state/")):
        item = objects.get(key)
        alert = _decode_or_none(item.data) if item else None
        if alert is not None:
            yield alert


def read_alert(objects: ObjectStore, *, cause: str, subject: str) -> Alert | None:
    """Reads one alert, open or recently ended; None if missing or unreadable."""
    item = objects.get(alert_key(cause, subject))
    return None if item is None else _decode_or_none(item.data)


def open_subjects(objects: ObjectStore, cause: str) -> set[str]:
    """Returns the subjects with an open alert of this cause. Lists the alerts once and reads each of them."""
    items = (objects.get(key) for key in objects.list(paths.alerts(f"state/{cause}/")))
    stored = (_decode_or_none(item.data) for item in items if item is not None)
    return {alert.subject for alert in stored if alert is not None and alert.state.is_open}


def alert_key(cause: str, subject: str) -> str:
    """Returns the object key of an alert. Long subjects are truncated and get a digest."""
    name = quote(subject, safe="")
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[:_MAX_NAME_LENGTH]}-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"
    return paths.alert_state(cause, name)


def _update_alert(
    objects: ObjectStore,
    cause: AlertCause,
    subject: str,
    *,
    severity: Severity | None,
    now: datetime,
    update: Callable[[Alert], Alert],
    prepare: Callable[[Alert], Alert] = lambda alert: alert,
    silences_now: Callable[[], Iterable[Silence]] | None = None,
) -> Notification | None:
    """Updates the state of an alert. Returns the notification if one is sent.

    Args:
        update: changes the alert after the decision on a notification.
        prepare: changes the alert before the decision.
        silences_now: returns all silences, if already read; called only if a notification may be suppressed.
    """
    key = alert_key(cause.name, subject)
    for _ in range(_MAX_ATTEMPTS):
        item = objects.get(key)
        stored = _decode_or_none(item.data) if item else None
        if severity is None and (stored is None or _is_finished(stored)):
            return None
        alert = prepare(stored or Alert(cause=cause.name, subject=subject))
        state, kind = update_state(alert.state, cause, severity=severity, now=now)
        if kind is not None:
            all_silences = silences(objects) if silences_now is None else silences_now()
            if active_silence(all_silences, cause=cause.name, subject=subject, now=now) is not None:
                state, kind = update_state(alert.state, cause, severity=severity, now=now, is_silenced=True)
        updated = update(alert).replace(state=state)
        notification = _build_notification(updated, alert.state, kind, now) if kind else None
        if notification is not None:
            updated = updated.replace(outbox=(*updated.outbox, notification))
        if updated == stored and not updated.outbox:
            return None
        data = updated.encode()
        if item is None:
            written = objects.put_if_absent(key, data)
        else:
            written = objects.put_if_match(key, data, item.etag) is not None
        if written:
            _flush_outbox(objects, key, updated, data)
            return notification
    raise ConcurrencyError(
        "ALERT_CONTENDED",
        f"The alert {cause.name} of {subject!r} was changed by other processes in all {_MAX_ATTEMPTS} attempts.",
    )


def _is_finished(alert: Alert) -> bool:
    """Whether the alert has ended, its end was notified, and its outbox is empty."""
    return not alert.state.is_open and alert.state.notified_severity is None and not alert.outbox


def _build_notification(alert: Alert, previous: AlertState, kind: NotificationKind, now: datetime) -> Notification:
    since = previous.since if kind == "resolved" and previous.is_open else alert.state.since
    severity = previous.notified_severity if kind == "resolved" else None
    notified = previous if kind == "resolved" else alert.state
    return Notification(
        id=notification_id(now),
        kind=kind,
        cause=alert.cause,
        subject=alert.subject,
        severity=severity or alert.state.severity,
        summary=alert.summary,
        detail=alert.detail,
        runbook=alert.runbook,
        since=(since or now).isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
        changes=previous.changes + (previous.is_open != alert.state.is_open),
        notified_severities=notified.notified_severities,
    )


def _flush_outbox(objects: ObjectStore, key: str, alert: Alert, data: bytes) -> None:
    """Copies notifications from the outbox to the spool. Idempotent: deliveries are recorded by notification id."""
    if not alert.outbox:
        return
    for notification in alert.outbox:
        objects.put_if_absent(paths.alert_notification(notification.id), notification.encode())
    item = objects.get(key)
    # If another process has written the alert since, its outbox still contains them for the next writer.
    if item is not None and item.data == data:
        objects.put_if_match(key, alert.replace(outbox=()).encode(), item.etag)


@lru_cache(maxsize=2048)
def _decode_or_none(data: bytes) -> Alert | None:
    """Parses an alert. Returns None if it is damaged or in another format, so that it is overwritten.

    Cached, since console pages read the same alerts many times.
    """
    return Alert.decode_or_none(data)
