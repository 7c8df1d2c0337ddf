"""Notifications: messages to people about one alert, and the rules for sending them.

The alert's state is always updated. Whether a notification follows depends on three things: the last notification, the
cooldown after a notification that raised the alert, and the number of notifications in the past hour. A suppressed
notification is sent later if it is still true, so the last notification about an alert is always correct.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from deltaworks.control.clock import utc_now
from deltaworks.control.records.store import Instant, StateRecord
from deltaworks.errors import Severity
from deltaworks.errors.conditions import AlertCause, severity_rank

HOUR = timedelta(hours=1)
NotificationKind = Literal["raised", "escalated", "reminder", "resolved"]


class AlertState(StateRecord):
    """The state of an alert and of its notifications.

    Args:
        since: when it opened or, once it has ended, when it ended.
        began_at: when it opened last.
        notified_severity: severity in the last notification; None if it reported the end, or there was none.
        last_notified_at: time of the last notification that raised the alert or was a reminder.
        last_notified_severity: severity in that notification.
        notified_severities: severities in the notifications since it was raised.
        notification_times: times of the notifications of the past hour.
        changes: how often the alert opened or ended since the last notification.
    """

    is_open: bool = False
    severity: Severity = "info"
    since: Instant | None = None
    began_at: Instant | None = None
    notified_severity: Severity | None = None
    last_notified_at: Instant | None = None
    last_notified_severity: Severity = "info"
    notified_severities: tuple[Severity, ...] = ()
    notification_times: tuple[Instant, ...] = ()
    changes: int = 0


def update_state(
    before: AlertState, cause: AlertCause, *, severity: Severity | None, now: datetime, is_silenced: bool = False
) -> tuple[AlertState, NotificationKind | None]:
    """Updates the state of an alert, and decides whether a notification is sent.

    Args:
        severity: current severity; None if the alert has ended.
        is_silenced: suppress notifications.

    Returns:
        The new state, and the kind of notification to send (None: no notification).
    """
    changed = before.is_open != (severity is not None)
    after = before.replace(
        is_open=severity is not None,
        severity=severity or before.severity,
        since=now if changed or before.since is None else before.since,
        began_at=now if changed and severity is not None else before.began_at,
        changes=before.changes + changed,
        notification_times=tuple(at for at in before.notification_times if _within(at, HOUR, now)),
    )
    kind = _due_notification(after, cause, now)
    if kind is None or is_silenced or len(after.notification_times) >= cause.max_notifications_per_hour:
        return after, None
    return _after_notification(after, kind, now), kind


def without_cooldown(state: AlertState) -> AlertState:
    """Resets the cooldown of an open alert, so that the next check sends a notification. Used when a silence ends."""
    return state.replace(last_notified_at=None) if state.is_open else state


def _due_notification(state: AlertState, cause: AlertCause, now: datetime) -> NotificationKind | None:
    """Returns the notification that is due, without regard to the hourly limit."""
    if not state.is_open:
        return "resolved" if state.notified_severity is not None else None
    if state.notified_severity is None:
        is_cooling_down = state.last_notified_at is not None and _within(
            state.last_notified_at, timedelta(seconds=cause.cooldown_seconds), now
        )
        return (
            None
            if is_cooling_down and severity_rank(state.severity) <= severity_rank(state.last_notified_severity)
            else "raised"
        )
    if severity_rank(state.severity) > severity_rank(state.notified_severity):
        return "escalated"
    repeat = timedelta(seconds=cause.repeat_seconds)
    return None if state.last_notified_at is not None and _within(state.last_notified_at, repeat, now) else "reminder"


def _after_notification(state: AlertState, kind: NotificationKind, now: datetime) -> AlertState:
    is_raised = kind in ("raised", "escalated")
    return state.replace(
        notified_severity=None if kind == "resolved" else state.severity,
        notified_severities=() if kind == "resolved" else _with_severity(state),
        last_notified_at=now if is_raised or kind == "reminder" else state.last_notified_at,
        last_notified_severity=state.severity if is_raised else state.last_notified_severity,
        notification_times=(*state.notification_times, now),
        changes=0,
    )


def _with_severity(state: AlertState) -> tuple[Severity, ...]:
    earlier = state.notified_severities if state.notified_severity is not None else ()
    return tuple(dict.fromkeys((*earlier, state.severity)))


def _within(at: datetime, span: timedelta, now: datetime) -> bool:
    """Whether `at` is less than `span` before now. A time up to `span` ahead of this clock counts as now."""
    return abs(now - at) < span


#: Limits of an SNS subject and of an SQS message.
MAX_SUBJECT_LENGTH = 100
MAX_DETAIL_LENGTH = 4_000


class Notification(StateRecord):
    """One message about an alert. Its `id` is the same however often it is sent; ids sort by time.

    `changes` counts how often the alert opened or ended since the previous notification: more than one if it flaps.
    `notified_severities` are those of the notifications since it was raised, so that its end reaches the same people.
    """

    id: str
    kind: NotificationKind
    cause: str
    subject: str
    severity: Severity
    summary: str
    detail: dict[str, Any]
    runbook: str
    since: str
    at: str
    changes: int = 0
    notified_severities: tuple[Severity, ...] = ()

    @property
    def title(self) -> str:
        """One line, for example for the subject of an e-mail."""
        severity_text = {"raised": self.severity, "escalated": self.severity, "reminder": f"still {self.severity}"}
        text = f"[{severity_text.get(self.kind, 'resolved')}] {self.cause} {self.subject}"
        return " ".join(text.encode("ascii", "replace").decode().split())[:MAX_SUBJECT_LENGTH]

    @property
    def text(self) -> str:
        """The message text: summary, start and runbook."""
        lines = [self.summary, f"Since {self.since}."]
        if self.changes > 1:
            lines.append(f"The alert changed {self.changes} times since the last notification.")
        if self.kind != "resolved":
            lines.append(f"Runbook: {self.runbook}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The notification as plain data, with title and text first, in the format that channels send."""
        return {"title": self.title, "text": self.text, **self.model_dump()}


def notification_id(at: datetime) -> str:
    """Returns a unique id that sorts by time."""
    return f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"


def truncate_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the detail to plain data. Long texts are truncated and get a note with their original length."""
    plain: dict[str, Any] = json.loads(json.dumps(detail, default=str))
    for name, value in plain.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > MAX_DETAIL_LENGTH:
            plain[name] = f"{text[:MAX_DETAIL_LENGTH]}… ({len(text)} characters)"
    return plain


def sample_notifications(*, ends: bool) -> list[Notification]:
    """Builds a test notification that is marked as a test, and with `ends` the notification of its end."""
    now = utc_now()
    raised = Notification(
        id=notification_id(now),
        kind="raised",
        cause="CHANNEL_FAILING",
        subject="trial",
        severity="critical",
        summary="This is a test. Nothing is wrong; notifications reach you.",
        detail={},
        runbook="reference/alerts.md#channels",
        since=now.isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
    )
    end = raised.replace(id=notification_id(now), kind="resolved", summary="The test has ended.")
    return [raised, end] if ends else [raised]
