"""Silences: somebody's word that people need no notifications of an alert for a while, with a reason and an end.

A silence holds notifications back and nothing else: its alerts are raised, shown and resolved as ever. It is of one cause and
of subjects of one pipeline, for seven days at most. It ends loudly: of what is open then people are notified at once,
and what ended meanwhile is reported as over where its beginning was. One that cannot be read silences nothing.
"""

from __future__ import annotations

import difflib
import logging
import re
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from pydantic import ConfigDict, ValidationError

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.conditions import ALERTS
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.control.summary_paths import silence as silence_key
from deltaworks.control.summary_paths import silences as silences_folder
from deltaworks.errors import ConfigError, DeltaworksError

log = logging.getLogger(__name__)
MAX_HOURS: Final = 7 * 24
#: Silences of ended times are kept for the record so long.
KEEP_DAYS: Final = 30
_MAX_TEXT_LENGTH = 500
#: What parts the words of a subject: `stream games`, `games.purchase`, `gold__games.rebuild_gold`.
_WORD_SEPARATOR = re.compile(r"[ .:/]|__")


def subject_words(subject: str) -> list[str]:
    """The words of an alert's subject: a silence is of a pipeline that is one of them."""
    return [word for word in _WORD_SEPARATOR.split(subject) if word]


class Silence(Record):
    """One silence. `subject` is a glob of the alerts' subjects. `ended_at` is empty until its end was dealt with."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="silence",
        unreadable_condition="SILENCE_UNREADABLE",
        hint="Delete the object: it silences nothing.",
        error=ConfigError,
    )

    id: str
    pipeline: str
    cause: str
    subject: str
    at: str
    until: str
    by: str
    reason: str
    ended_at: str = ""

    def is_active_at(self, now: datetime) -> bool:
        """Whether notifications are held back."""
        until = parse_iso(self.until)
        return not self.ended_at and until is not None and now < until

    def covers(self, cause: str, subject: str) -> bool:
        """Whether the alert is one that it is of, whenever that is."""
        return cause == self.cause and self.pipeline in subject_words(subject) and fnmatchcase(subject, self.subject)


def create_silence(
    objects: ObjectStore,
    *,
    pipeline: str,
    cause: str,
    hours: float,
    reason: str,
    by: str,
    subject: str = "*",
    now: datetime | None = None,
) -> Silence:
    """Hold notifications of an alert back from now on.

    Args:
        pipeline: which the subjects name: a silence is of one pipeline's alerts alone.
        subject: a glob: `*` and `?` stand for any characters.

    Raises:
        ConfigError: SILENCE_INVALID.
    """
    if cause not in ALERTS:
        nearest = difflib.get_close_matches(cause, ALERTS, n=1, cutoff=0.0)
        raise _invalid(f"No alert is called {cause!r}.", f"The nearest is {nearest[0]}.")
    if not 0 < hours <= MAX_HOURS:
        raise _invalid(f"{hours:g} h is no time for a silence.", f"Give more than 0 and at most {MAX_HOURS} h.")
    if not reason.strip():
        raise _invalid("A silence has a reason.", "Say in a few words why nobody needs to be notified.")
    if not subject or len(subject) > _MAX_TEXT_LENGTH:
        raise _invalid("The subject is empty or too long.", "Write a glob such as `games.*`, or leave it out for all.")
    now = now or utc_now()
    silence = Silence(
        id=f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}",
        pipeline=pipeline,
        cause=cause,
        subject=subject,
        at=now.isoformat(timespec="seconds"),
        until=(now + timedelta(hours=hours)).isoformat(timespec="seconds"),
        by=by,
        reason=" ".join(reason.split())[:_MAX_TEXT_LENGTH],
    )
    objects.put(silence_key(silence.id), silence.encode())
    return silence


def end_silences(
    objects: ObjectStore, *, pipeline: str, cause: str, subject: str = "*", now: datetime | None = None
) -> list[Silence]:
    """Have the active silences of this pipeline, cause and glob end now; those that do. Idempotent."""
    now = now or utc_now()
    ending = [
        silence
        for silence in silences(objects)
        if (silence.pipeline, silence.cause, silence.subject) == (pipeline, cause, subject)
        and silence.is_active_at(now)
    ]
    ended = [silence.replace(until=now.isoformat(timespec="milliseconds")) for silence in ending]
    for silence in ended:
        objects.put(silence_key(silence.id), silence.encode())
    return ended


def silences(objects: ObjectStore) -> list[Silence]:
    """All silences that can be read, those that ended lately among them, the newest first."""
    items = ((key, objects.get(key)) for key in objects.list(silences_folder()))
    decoded = (decode_silence(item.data, key=key) for key, item in items if item is not None)
    return sorted((one for one in decoded if one is not None), key=lambda one: one.at, reverse=True)


def decode_silence(data: bytes, *, key: str) -> Silence | None:
    """The silence that bytes hold; None where they are torn, for then it silences nothing."""
    try:
        silence = Silence.decode(data, key=key)
        parse_iso(silence.until)
        return silence
    except (DeltaworksError, ValidationError, ValueError) as error:
        log.warning("%s silences nothing: %s", key, error)
        return None


def active_silence(stored: Iterable[Silence], *, cause: str, subject: str, now: datetime) -> Silence | None:
    """The silence that holds notifications of an alert back, None where people are to be notified."""
    active = (one for one in stored if one.is_active_at(now) and one.covers(cause, subject))
    return next(active, None)


def expired_silences(objects: ObjectStore, stored: Iterable[Silence], *, now: datetime) -> list[Silence]:
    """Silences whose time is over and whose end nobody has dealt with. Removes those that ended long ago."""
    expired = []
    for silence in stored:
        until = parse_iso(silence.until)
        if until is None or now - until > timedelta(days=KEEP_DAYS):
            objects.delete(silence_key(silence.id))
        elif not silence.ended_at and now >= until:
            expired.append(silence)
    return expired


def mark_ended(objects: ObjectStore, silence: Silence, *, now: datetime) -> None:
    """Note that the end of a silence was dealt with. Idempotent."""
    objects.put(silence_key(silence.id), silence.replace(ended_at=now.isoformat(timespec="seconds")).encode())


def _invalid(message: str, hint: str) -> ConfigError:
    return ConfigError("SILENCE_INVALID", message, hint=hint)
