"""When an alert is told: a pure state machine that knows what was told last, and tells again only when that is wrong.

What is true (open or resolved, how severe) is always taken over. Whether it is told follows from what was told last,
from the cooldown after a notice of its raising, and from how many notices the past hour has had. What may not be told
yet is told later, if it still holds: an alert that stays as it is ends with its last notice saying so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from deltaworks.alerts.causes import Cause, rank
from deltaworks.specs.environment import Severity

HOUR = timedelta(hours=1)
Kind = Literal["raised", "escalated", "reminder", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How an alert stands and what was told of it.

    `told` is the severity of the last notice, None where that was of its end or there was none. `notices` are the times
    of the past hour's. `changes` counts since the last notice how often it opened or ended.
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
    before: Standing, cause: Cause, *, severity: Severity | None, now: datetime
) -> tuple[Standing, Kind | None]:
    """Take over what is true now, and decide what is told.

    Args:
        severity: how severe it is, None where it is not so any more.

    Returns:
        How it stands now, and the kind of notice to give, if one.
    """
    changed = before.open != (severity is not None)
    found = replace(
        before,
        open=severity is not None,
        severity=severity or before.severity,
        since=now if changed or before.since is None else before.since,
        changes=before.changes + changed,
        notices=tuple(at for at in before.notices if _within(at, HOUR, now)),
    )
    kind = _owed(found, cause, now)
    if kind is None or len(found.notices) >= cause.notices_per_hour:
        return found, None
    return _told(found, kind, now), kind


def _owed(found: Standing, cause: Cause, now: datetime) -> Kind | None:
    """What would be told if notices were not counted."""
    if not found.open:
        return "resolved" if found.told is not None else None
    if found.told is None:
        cooling = found.raised_at is not None and _within(
            found.raised_at, timedelta(seconds=cause.cooldown_seconds), now
        )
        return None if cooling and rank(found.severity) <= rank(found.raised_severity) else "raised"
    if rank(found.severity) > rank(found.told):
        return "escalated"
    repeat = timedelta(seconds=cause.repeat_seconds)
    return None if found.raised_at is not None and _within(found.raised_at, repeat, now) else "reminder"


def _told(found: Standing, kind: Kind, now: datetime) -> Standing:
    raised = kind in ("raised", "escalated")
    return replace(
        found,
        told=None if kind == "resolved" else found.severity,
        raised_at=now if raised or kind == "reminder" else found.raised_at,
        raised_severity=found.severity if raised else found.raised_severity,
        notices=(*found.notices, now),
        changes=0,
    )


def _within(at: datetime, span: timedelta, now: datetime) -> bool:
    """Whether `at` lies less than `span` before now. A time ahead of this clock counts as now, for at most as long."""
    return abs(now - at) < span
