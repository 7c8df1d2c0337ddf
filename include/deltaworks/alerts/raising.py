"""Raises and resolves alerts: one object per cause and subject holds its state, replaced only as it was read.

Two processes that raise the same alert at once end with one notice: whoever writes second reads what the first wrote.
A notice is part of the write that decides on it (`outbox`), so that none is lost between deciding and sending; it is
then copied to the spool, from which `deltaworks.alerts.sending` delivers it. Nothing here talks to a channel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from deltaworks.alerts.notice import Notice, NoticeKind, Standing, fitting, notice_id, observe, unsilenced
from deltaworks.alerts.silences import Silence, close_silence, over_silences, silenced_by, silences
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.troubles import ALERTS, AlertCause, cause_of
from deltaworks.errors import ConcurrencyError
from deltaworks.specs.environment import Severity

_TRIES = 20
_NAME_LENGTH = 120
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert as stored: its state, its texts, and the notices not yet in the spool (`outbox`)."""

    cause: str
    subject: str
    standing: Standing = field(default_factory=Standing)
    summary: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    runbook: str = ""
    seen_at: str = ""
    outbox: tuple[Notice, ...] = ()
    format: int = FORMAT

    def encode(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), default=_as_text).encode()

    @classmethod
    def decode(cls, data: bytes) -> Alert:
        """What `encode` wrote.

        Raises:
            ValueError: it is no alert, or one of another format.
        """
        record = json.loads(data)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"no alert of format {FORMAT}")
        state = record["standing"]
        times = {name: parse_iso(state.get(name)) for name in ("since", "raised_at")}
        notices = tuple(at for text in state.get("notices", ()) if (at := parse_iso(text)))
        values = {name: state[name] for name in Standing.__slots__ if name in state}
        standing = Standing(**{**values, **times, "notices": notices})
        outbox = tuple(Notice.decode(json.dumps(notice)) for notice in record.get("outbox", ()))
        fields = {name: record[name] for name in cls.__slots__ if name in record}
        return cls(**{**fields, "standing": standing, "outbox": outbox})


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
) -> Notice | None:
    """Raise an alert of `subject`, as often as it is seen: at most one is open per cause and subject.

    Safe from many processes at once. People are notified at once, then after cooldowns and within the limits of its
    cause, see `deltaworks.control.troubles`.

    Args:
        severity: another than that of the cause.
        detail: plain data for whoever looks into it; long texts are cut.
        runbook: another page than that of the cause.

    Returns:
        The notice, which is in the spool then; None where nothing is new.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN.
        ConcurrencyError: ALERT_BUSY; TransientError: the control area does not answer.
    """
    kind = cause_of(cause)
    now = now or utc_now()
    seen_at, fits = now.isoformat(timespec="milliseconds"), fitting(detail or {})
    return _change(
        objects,
        kind,
        subject,
        severity=severity or kind.severity,
        now=now,
        update=lambda alert: replace(
            alert, seen_at=seen_at, summary=summary, detail=fits, runbook=runbook or kind.runbook
        ),
    )


def resolve_alert(
    objects: ObjectStore, *, cause: str, subject: str, summary: str = "", now: datetime | None = None
) -> Notice | None:
    """Resolve an alert. Nothing is written where no such alert is open.

    Raises:
        ConfigError: ALERT_CAUSE_UNKNOWN.
        ConcurrencyError: ALERT_BUSY; TransientError: the control area does not answer.
    """
    kind = cause_of(cause)
    return _change(
        objects,
        kind,
        subject,
        severity=None,
        now=now or utc_now(),
        update=lambda alert: replace(alert, summary=summary or alert.summary),
    )


def settle_alerts(objects: ObjectStore, *, now: datetime | None = None, keep_days: float = 30) -> list[Notice]:
    """Give notices that were held back and are still true, spool those of a process that died, and delete alerts that
    ended `keep_days` ago. To be run every minute or so; safe from many processes at once. Returns the notices."""
    now = now or utc_now()
    notices = []
    # Read once: many alerts may be due, and a silence that begins meanwhile holds back from the next time on.
    stored = silences(objects)
    over = over_silences(objects, stored, now=now)
    for alert in alerts(objects):
        kind, standing = ALERTS.get(alert.cause), alert.standing
        if kind is None:
            continue
        severity = standing.severity if standing.open else None
        loud = any(silence.covers(alert.cause, alert.subject) for silence in over)
        update = _out_of_silence if loud else _as_it_is
        notice = _change(
            objects,
            kind,
            alert.subject,
            severity=severity,
            now=now,
            update=_as_it_is,
            before=update,
            silences_now=lambda: stored,
        )
        if notice is not None:
            notices.append(notice)
        if _is_over(alert) and standing.since is not None and now - standing.since > timedelta(days=keep_days):
            objects.delete(alert_key(alert.cause, alert.subject))
    # Last: a process that dies before leaves the silence to the next one.
    for silence in over:
        close_silence(objects, silence, now=now)
    return notices


def _as_it_is(alert: Alert) -> Alert:
    return alert


def _out_of_silence(alert: Alert) -> Alert:
    return replace(alert, standing=unsilenced(alert.standing))


def alerts(objects: ObjectStore) -> Iterator[Alert]:
    """Every stored alert, open or ended lately. Objects that cannot be read are skipped."""
    for key in objects.list(paths.alerts("state/")):
        item = objects.get(key)
        alert = _decoded(item.data) if item else None
        if alert is not None:
            yield alert


def read_alert(objects: ObjectStore, *, cause: str, subject: str) -> Alert | None:
    """One alert as it is stored, open or ended lately; None where there is none, or none that can be read."""
    item = objects.get(alert_key(cause, subject))
    return None if item is None else _decoded(item.data)


def open_subjects(objects: ObjectStore, cause: str) -> set[str]:
    """Whose alert of this cause is open: one listing, and a request for each alert of it there has been lately."""
    items = (objects.get(key) for key in objects.list(paths.alerts(f"state/{cause}/")))
    stored = (_decoded(item.data) for item in items if item is not None)
    return {alert.subject for alert in stored if alert is not None and alert.standing.open}


def alert_key(cause: str, subject: str) -> str:
    """The key of an alert. Long subjects are shortened and made unique by a digest."""
    name = quote(subject, safe="")
    if len(name) > _NAME_LENGTH:
        name = f"{name[:_NAME_LENGTH]}-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"
    return paths.alert_state(cause, name)


def _change(
    objects: ObjectStore,
    cause: AlertCause,
    subject: str,
    *,
    severity: Severity | None,
    now: datetime,
    update: Callable[[Alert], Alert],
    before: Callable[[Alert], Alert] = lambda alert: alert,
    silences_now: Callable[[], Iterable[Silence]] | None = None,
) -> Notice | None:
    """Take over what is true of an alert now; its notice, where one is given.

    Args:
        update: what else changes of it. `before` changes it before its notice is decided on.
        silences_now: all silences, where they are read already; it is asked only where there is a notice to hold back.
    """
    key = alert_key(cause.name, subject)
    for _ in range(_TRIES):
        item = objects.get(key)
        stored = _decoded(item.data) if item else None
        if severity is None and (stored is None or _is_over(stored)):
            return None
        alert = before(stored or Alert(cause=cause.name, subject=subject))
        standing, kind = observe(alert.standing, cause, severity=severity, now=now)
        if kind is not None:
            stored_silences = silences(objects) if silences_now is None else silences_now()
            if silenced_by(stored_silences, cause=cause.name, subject=subject, now=now) is not None:
                standing, kind = observe(alert.standing, cause, severity=severity, now=now, silenced=True)
        after = replace(update(alert), standing=standing)
        notice = _notice(after, alert.standing, kind, now) if kind else None
        if notice is not None:
            after = replace(after, outbox=(*after.outbox, notice))
        if after == stored and not after.outbox:
            return None
        data = after.encode()
        if item is None:
            written = objects.put_if_absent(key, data)
        else:
            written = objects.put_if_match(key, data, item.etag) is not None
        if written:
            _empty_outbox(objects, key, after, data)
            return notice
    raise ConcurrencyError(
        "ALERT_BUSY",
        f"The alert {cause.name} of {subject!r} was changed by others each of {_TRIES} times.",
        hint="Nothing is lost: the next time it is raised it is reported.",
    )


def _is_over(alert: Alert) -> bool:
    """Whether it has ended, the notice of that was given, and nothing is left to send."""
    return not alert.standing.open and alert.standing.told is None and not alert.outbox


def _notice(alert: Alert, before: Standing, kind: NoticeKind, now: datetime) -> Notice:
    since = before.since if kind == "resolved" and before.open else alert.standing.since
    severity = before.told if kind == "resolved" else None
    return Notice(
        id=notice_id(now),
        kind=kind,
        cause=alert.cause,
        subject=alert.subject,
        severity=severity or alert.standing.severity,
        summary=alert.summary,
        detail=alert.detail,
        runbook=alert.runbook,
        since=(since or now).isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
        changes=before.changes + (before.open != alert.standing.open),
    )


def _empty_outbox(objects: ObjectStore, key: str, alert: Alert, data: bytes) -> None:
    """Copy notices to the spool. Idempotent: deliveries are recorded by the id of the notice."""
    if not alert.outbox:
        return
    for notice in alert.outbox:
        objects.put_if_absent(paths.alert_notification(notice.id), notice.encode())
    item = objects.get(key)
    # Where another process has written since, the outbox stays for its next writer.
    if item is not None and item.data == data:
        objects.put_if_match(key, replace(alert, outbox=()).encode(), item.etag)


@lru_cache(maxsize=2048)
def _decoded(data: bytes) -> Alert | None:
    """The alert; None for an object that is torn or of another format, which is overwritten.

    Kept, since pages read the same alerts many times; one is frozen.
    """
    try:
        return Alert.decode(data)
    except (ValueError, KeyError, TypeError):
        return None


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
