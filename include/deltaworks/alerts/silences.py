"""Silences: a person's request to suppress notifications of an alert for a time, with a reason.

A silence suppresses only notifications; alerts are still raised, shown and resolved. It applies to one cause and to
subjects of one pipeline, for at most seven days. When it ends, people are notified immediately of open alerts, and of
ended alerts if people were notified of their beginning. An unreadable silence has no effect.
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
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import silence as silence_key
from deltaworks.control.paths import silences as silences_folder
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.errors.conditions import catalog

log = logging.getLogger(__name__)
MAX_HOURS: Final = 7 * 24
#: Retention of ended silences.
KEEP_DAYS: Final = 30
_MAX_TEXT_LENGTH = 500
#: Separators between the words of a subject: `stream games`, `games.purchase`, `games__gold.rebuild_gold`.
_WORD_SEPARATOR = re.compile(r"[ .:/]|__")


def subject_words(subject: str) -> list[str]:
    """Splits an alert's subject into words. A silence applies to subjects that contain its pipeline."""
    return [word for word in _WORD_SEPARATOR.split(subject) if word]


class Silence(Record):
    """One silence. `subject` is a glob. `ended_at` stays empty until its end was processed."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="silence",
        unreadable_condition="SILENCE_UNREADABLE",
        hint="Delete the object: it has no effect.",
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
        """Whether the silence suppresses notifications at this time."""
        until = parse_iso(self.until)
        return not self.ended_at and until is not None and now < until

    def covers(self, cause: str, subject: str) -> bool:
        """Whether the silence applies to an alert, regardless of time."""
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
    """Creates a silence that starts now.

    Args:
        pipeline: must be a word of the alert's subject.
        subject: a glob: `*` and `?` match any characters.

    Raises:
        ConfigError: SILENCE_INVALID.
    """
    if cause not in catalog().alerts:
        nearest = difflib.get_close_matches(cause, catalog().alerts, n=1, cutoff=0.0)
        raise _invalid(f"There is no alert {cause!r}.", f"Did you mean {nearest[0]}?")
    if not 0 < hours <= MAX_HOURS:
        raise _invalid(f"A silence cannot last {hours:g} h.", f"Use more than 0 and at most {MAX_HOURS} h.")
    if not reason.strip():
        raise _invalid("A silence needs a reason.", "Describe in a few words why no notification is needed.")
    if not subject or len(subject) > _MAX_TEXT_LENGTH:
        raise _invalid(
            "The subject is empty or too long.", ("Write a glob such as `games.*`, or omit it for all subjects.")
        )
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
    """Ends the active silences of this pipeline, cause and glob; returns them. Idempotent."""
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
    """Reads all silences, recently ended ones included, newest first."""
    items = ((key, objects.get(key)) for key in objects.list(silences_folder()))
    decoded = (decode_silence(item.data, key=key) for key, item in items if item is not None)
    return sorted((one for one in decoded if one is not None), key=lambda one: one.at, reverse=True)


def decode_silence(data: bytes, *, key: str) -> Silence | None:
    """Parses a silence; None if it is damaged."""
    try:
        silence = Silence.decode(data, key=key)
        parse_iso(silence.until)
        return silence
    except (DeltaworksError, ValidationError, ValueError) as error:
        log.warning("%s has no effect: %s", key, error)
        return None


def active_silence(stored: Iterable[Silence], *, cause: str, subject: str, now: datetime) -> Silence | None:
    """Returns the silence that suppresses notifications of an alert, or None."""
    active = (one for one in stored if one.is_active_at(now) and one.covers(cause, subject))
    return next(active, None)


def expired_silences(objects: ObjectStore, stored: Iterable[Silence], *, now: datetime) -> list[Silence]:
    """Returns expired silences whose end was not processed yet. Deletes those that ended long ago."""
    expired = []
    for silence in stored:
        until = parse_iso(silence.until)
        if until is None or now - until > timedelta(days=KEEP_DAYS):
            objects.delete(silence_key(silence.id))
        elif not silence.ended_at and now >= until:
            expired.append(silence)
    return expired


def mark_ended(objects: ObjectStore, silence: Silence, *, now: datetime) -> None:
    """Records that the end of a silence was processed. Idempotent."""
    objects.put(silence_key(silence.id), silence.replace(ended_at=now.isoformat(timespec="seconds")).encode())


def _invalid(message: str, hint: str) -> ConfigError:
    return ConfigError("SILENCE_INVALID", message, hint=hint)
