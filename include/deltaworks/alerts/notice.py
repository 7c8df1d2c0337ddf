"""Notices: the messages to people about one alert at one time, and when one is due.

The truth (open or resolved, how severe) is always taken over. Whether a notice follows depends on the last notice, on
the cooldown after one of its raising, and on the number of notices in the past hour. A notice that is held back is
sent later, if it is still true: an alert that comes to rest ends with a notice that is true.
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
from deltaworks.control.troubles import AlertCause, rank
from deltaworks.specs.environment import Severity

HOUR = timedelta(hours=1)
NoticeKind = Literal["raised", "escalated", "reminder", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of an alert and of its notices.

    `told` is the severity of the last notice, None where that was of its end or there was none. `notices` are the times
    of those of the past hour. `changes` counts how often the alert opened or ended since the last notice.
    """

    open: bool = False
    severity: Severity = "info"
    since: datetime | None = None
    told: Severity | None = None
    raised_at: datetime | None = None
    raised_severity: Severity = "info"
    notices: tuple[datetime, ...] = ()
    changes: int = 0


def observe(
    before: Standing, cause: AlertCause, *, severity: Severity | None, now: datetime, silenced: bool = False
) -> tuple[Standing, NoticeKind | None]:
    """Take over what is true now, and decide on a notice.

    Args:
        severity: how severe it is, None where it is over.
        silenced: hold any notice back.

    Returns:
        The new state, and the kind of notice to give, None for no notice.
    """
    changed = before.open != (severity is not None)
    after = replace(
        before,
        open=severity is not None,
        severity=severity or before.severity,
        since=now if changed or before.since is None else before.since,
        changes=before.changes + changed,
        notices=tuple(at for at in before.notices if _within(at, HOUR, now)),
    )
    kind = _owed(after, cause, now)
    if kind is None or silenced or len(after.notices) >= cause.notices_per_hour:
        return after, None
    return _noticed(after, kind, now), kind


def unsilenced(standing: Standing) -> Standing:
    """The same once a silence is over: while it is open, the next look notifies people, however lately they were."""
    return replace(standing, raised_at=None) if standing.open else standing


def _owed(standing: Standing, cause: AlertCause, now: datetime) -> NoticeKind | None:
    """The notice that would be given if notices were not counted."""
    if not standing.open:
        return "resolved" if standing.told is not None else None
    if standing.told is None:
        cooling = standing.raised_at is not None and _within(
            standing.raised_at, timedelta(seconds=cause.cooldown_seconds), now
        )
        return None if cooling and rank(standing.severity) <= rank(standing.raised_severity) else "raised"
    if rank(standing.severity) > rank(standing.told):
        return "escalated"
    repeat = timedelta(seconds=cause.repeat_seconds)
    return None if standing.raised_at is not None and _within(standing.raised_at, repeat, now) else "reminder"


def _noticed(standing: Standing, kind: NoticeKind, now: datetime) -> Standing:
    raised = kind in ("raised", "escalated")
    return replace(
        standing,
        told=None if kind == "resolved" else standing.severity,
        raised_at=now if raised or kind == "reminder" else standing.raised_at,
        raised_severity=standing.severity if raised else standing.raised_severity,
        notices=(*standing.notices, now),
        changes=0,
    )


def _within(at: datetime, span: timedelta, now: datetime) -> bool:
    """Whether `at` lies less than `span` before now. A time ahead of this clock counts as now, for at most as long."""
    return abs(now - at) < span


#: SNS takes no more in a subject, and SQS little more than this in a message.
SUBJECT_LENGTH = 100
DETAIL_LENGTH = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message. `id` is one per notice, whoever sends it and however often; ids sort by time.

    `changes` is how often the alert has opened or ended since the notice before: more than one where it flaps.
    """

    id: str
    kind: NoticeKind
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
        return " ".join(text.encode("ascii", "replace").decode().split())[:SUBJECT_LENGTH]

    @property
    def text(self) -> str:
        """The notice for people: what, since when, what to do."""
        lines = [self.summary, f"Since {self.since}."]
        if self.changes > 1:
            lines.append(f"It has changed {self.changes} times since the last notice.")
        if self.kind != "resolved":
            lines.append(f"Runbook: {self.runbook}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The notice as plain data, with its texts first, as channels send it."""
        return {"title": self.title, "text": self.text, **dataclasses.asdict(self)}

    def encode(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | str) -> Notice:
        """What `encode` wrote. Unknown keys are ignored."""
        record = json.loads(data)
        return cls(**{name: record[name] for name in cls.__slots__ if name in record})


def notice_id(at: datetime) -> str:
    """A unique id that sorts by time."""
    return f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"


def fitting(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail as plain data that fits into a message: long texts are cut, with their length."""
    plain: dict[str, Any] = json.loads(json.dumps(detail, default=str))
    for name, value in plain.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > DETAIL_LENGTH:
            plain[name] = f"{text[:DETAIL_LENGTH]}… ({len(text)} characters)"
    return plain


def trial_notice() -> Notice:
    """A notice that says that it is a trial."""
    now = utc_now()
    return Notice(
        id=notice_id(now),
        kind="raised",
        cause="CHANNEL_FAILING",
        subject="trial",
        severity="critical",
        summary="This is a trial: nothing is wrong, and notices reach you.",
        detail={},
        runbook="reference/alerts.md#channels",
        since=now.isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
    )
