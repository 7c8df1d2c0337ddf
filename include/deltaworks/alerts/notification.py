"""Notifications: the messages to people about one alert at one time, and when one is due.

The truth (open or resolved, how severe) is always taken over. Whether a notification follows depends on the last notification, on
the cooldown after one of its raising, and on the number of notifications in the past hour. A notification that is held back is
sent later, if it is still true: an alert that comes to rest ends with a notification that is true.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from deltaworks.control.clock import utc_now
from deltaworks.control.conditions import AlertCause, severity_rank
from deltaworks.specs.environment import Severity

HOUR = timedelta(hours=1)
NotificationKind = Literal["raised", "escalated", "reminder", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """The state of an alert and of its notifications.

    `told` is the severity of the last notification, None where that was of its end or there was none. `notifications` are the times
    of those of the past hour. `changes` counts how often the alert opened or ended since the last notification.
    """

    is_open: bool = False
    severity: Severity = "info"
    since: datetime | None = None
    notified_severity: Severity | None = None
    last_notified_at: datetime | None = None
    last_notified_severity: Severity = "info"
    notification_times: tuple[datetime, ...] = ()
    changes: int = 0


def update_state(
    before: AlertState, cause: AlertCause, *, severity: Severity | None, now: datetime, is_silenced: bool = False
) -> tuple[AlertState, NotificationKind | None]:
    """Take over what is true now, and decide on a notification.

    Args:
        severity: how severe it is, None where it is over.
        silenced: hold any notification back.

    Returns:
        The new state, and the kind of notification to give, None for no notification.
    """
    changed = before.is_open != (severity is not None)
    after = replace(
        before,
        is_open=severity is not None,
        severity=severity or before.severity,
        since=now if changed or before.since is None else before.since,
        changes=before.changes + changed,
        notification_times=tuple(at for at in before.notification_times if _within(at, HOUR, now)),
    )
    kind = _due_notification(after, cause, now)
    if kind is None or is_silenced or len(after.notification_times) >= cause.max_notifications_per_hour:
        return after, None
    return _after_notification(after, kind, now), kind


def without_cooldown(state: AlertState) -> AlertState:
    """The same once a silence is over: while it is open, the next look notifies people, however lately they were."""
    return replace(state, last_notified_at=None) if state.is_open else state


def _due_notification(state: AlertState, cause: AlertCause, now: datetime) -> NotificationKind | None:
    """The notification that would be given if notifications were not counted."""
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
    return replace(
        state,
        notified_severity=None if kind == "resolved" else state.severity,
        last_notified_at=now if is_raised or kind == "reminder" else state.last_notified_at,
        last_notified_severity=state.severity if is_raised else state.last_notified_severity,
        notification_times=(*state.notification_times, now),
        changes=0,
    )


def _within(at: datetime, span: timedelta, now: datetime) -> bool:
    """Whether `at` lies less than `span` before now. A time ahead of this clock counts as now, for at most as long."""
    return abs(now - at) < span


#: SNS takes no more in a subject, and SQS little more than this in a message.
MAX_SUBJECT_LENGTH = 100
MAX_DETAIL_LENGTH = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message. `id` is one per notification, whoever sends it and however often; ids sort by time.

    `changes` is how often the alert has opened or ended since the notification before: more than one where it flaps.
    """

    id: str
    kind: NotificationKind
    cause: str
    subject: str
    severity: Severity
    summary: str
    detail: Mapping[str, Any]
    runbook: str
    since: str
    at: str
    changes: int = 0

    @property
    def title(self) -> str:
        """One line for people, such as a mail's subject."""
        word = {"raised": self.severity, "escalated": self.severity, "reminder": f"still {self.severity}"}
        text = f"[{word.get(self.kind, 'resolved')}] {self.cause} {self.subject}"
        return " ".join(text.encode("ascii", "replace").decode().split())[:MAX_SUBJECT_LENGTH]

    @property
    def text(self) -> str:
        """The notification for people: what, since when, what to do."""
        lines = [self.summary, f"Since {self.since}."]
        if self.changes > 1:
            lines.append(f"It has changed {self.changes} times since the last notification.")
        if self.kind != "resolved":
            lines.append(f"Runbook: {self.runbook}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The notification as plain data, with its texts first, as channels send it."""
        return {"title": self.title, "text": self.text, **dataclasses.asdict(self)}

    def encode(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | str) -> Notification:
        """What `encode` wrote. Unknown keys are ignored."""
        record = json.loads(data)
        return cls(**{name: record[name] for name in cls.__slots__ if name in record})


def notification_id(at: datetime) -> str:
    """A unique id that sorts by time."""
    return f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"


def truncate_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail as plain data that fits into a message: long texts are cut, with their length."""
    plain: dict[str, Any] = json.loads(json.dumps(detail, default=str))
    for name, value in plain.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > MAX_DETAIL_LENGTH:
            plain[name] = f"{text[:MAX_DETAIL_LENGTH]}… ({len(text)} characters)"
    return plain


def test_notification() -> Notification:
    """A notification that says that it is a trial."""
    now = utc_now()
    return Notification(
        id=notification_id(now),
        kind="raised",
        cause="CHANNEL_FAILING",
        subject="trial",
        severity="critical",
        summary="This is a trial: nothing is wrong, and notifications reach you.",
        detail={},
        runbook="reference/alerts.md#channels",
        since=now.isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
    )
