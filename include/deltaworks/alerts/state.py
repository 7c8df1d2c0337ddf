"""When people are notified of an alert: a pure state machine that gives a notice where the last one is wrong by now.

The truth (open or resolved, how severe) is always taken over. Whether a notice follows depends on the last notice, on
the cooldown after one of its raising, and on the number of notices in the past hour. A notice that is held back is
given later, if it is still true: an alert that comes to rest ends with a notice that is true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

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
    before: Standing, cause: AlertCause, *, severity: Severity | None, now: datetime
) -> tuple[Standing, NoticeKind | None]:
    """Take over what is true now, and decide on a notice.

    Args:
        severity: how severe it is, None where it is over.

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
    if kind is None or len(after.notices) >= cause.notices_per_hour:
        return after, None
    return _noticed(after, kind, now), kind


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
