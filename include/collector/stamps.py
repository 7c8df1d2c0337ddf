"""What the collector adds to an event, put into its text: `_collector`, with time, id, source and where it came from.

The event itself goes on as it was sent. The number of an event is not decided before it is written, so an event is
given as the parts of its text between which the number goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import orjson

from collector.bodies import Sent, SentEvent
from collector.exact_text import as_text, without_member

FIELD: Final = "_collector"


class EventStrip(Protocol):
    """Changes the events of one request before anything of them is kept anywhere."""

    def strip(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event as it may be kept; None where it may not."""

    def unreadable(self, text: str) -> None:
        """Take note of what cannot be read."""

    def sealed(self, request: str) -> bytes | None:
        """The payload of the request's sealed frame, if any."""


class Strip(Protocol):
    """Strips the events of a source."""

    def begin(self, received_ms: int) -> EventStrip:
        """Begin with the events of a request."""


_VERSION = 1
_HEAD = f'{{"{FIELD}":{{"v":{_VERSION},"seq":'
_HEAD_BYTES = _HEAD.encode()
_IDS = ("messageId", "event_id", "id")
_TIMES = ("timestamp", "originalTimestamp", "time", "eventTime", "client_event_time")
_LONGEST_ID = 256
_BOT = re.compile(rb"bot\b|crawl|spider|slurp|headless|lighthouse|python-requests|^curl/|^wget/", re.IGNORECASE)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_SECONDS_BELOW = 100_000_000_000
_FUTURE_MS = 5 * 60_000


class Arrival(NamedTuple):
    """Where and when a request came in. `address` is cut already; `key` is the digest of the sender's key."""

    source: str
    key: bytes
    collector: str
    request: str
    received_ms: int
    address: str | None = None
    bot: bool = False


@dataclass(frozen=True, slots=True)
class StampRules:
    """What is a wrong clock, what is late, and the shape that events have.

    `gateway`: an event is the text in `body` of a request of API Gateway. `event_time`: it has the time as `eventTime`
    too.
    """

    skew_ms: int
    late_ms: int
    gateway: bool = False
    event_time: bool = False
    strip: Strip | None = None


def stamped_events(
    sent: Sent, arrival: Arrival, rules: StampRules, strip: EventStrip | None = None
) -> list[tuple[bytes, ...] | None]:
    """The events of a request as they are kept: each as parts of a text, the event's number between them.

    Args:
        strip: changes them before; None of those it says may not be kept.
    """
    times = [_time_of(event.value) for event in sent.events]
    sent_ms = epoch_ms(sent.sent_at)
    skew = _skew(sent_ms, times, arrival.received_ms, rules.skew_ms)
    ahead, behind = _shared(sent_ms, skew, arrival)
    writer = _Writer(sent, arrival, rules, skew or 0, ahead, behind, strip)
    return [writer.parts(event, time) for event, time in zip(sent.events, times, strict=True)]


def _skew(sent_ms: int | None, times: list[int | None], received_ms: int, threshold_ms: int) -> int | None:
    """By how much the clock of the sender is wrong; None where it is not, or nobody can say.

    Below the threshold what is measured is how long a request took, and correcting it would reorder a device. A time of
    sending before the newest event is one of an earlier try.
    """
    if sent_ms is None or abs(received_ms - sent_ms) <= threshold_ms:
        return None
    newest = max((time for time in times if time is not None), default=sent_ms)
    return received_ms - sent_ms if sent_ms >= newest else None


def _shared(sent_ms: int | None, skew: int | None, arrival: Arrival) -> tuple[str, str]:
    """What the stamps of a request's events have in common: before their time and behind it."""
    ahead = f'"received_at":"{iso(arrival.received_ms)}"'
    if sent_ms is not None:
        ahead += f',"sent_at":"{iso(sent_ms)}","skew_ms":{arrival.received_ms - sent_ms}'
    behind = f'"source":"{arrival.source}","collector":"{arrival.collector}","request":"{arrival.request}"'
    if arrival.address is not None:
        behind += f',"ip":"{arrival.address}"'
    return ahead, behind


@dataclass(slots=True)
class _Writer:
    """Writes the events of one request."""

    _sent: Sent
    _arrival: Arrival
    _rules: StampRules
    _skew: int
    _ahead: str
    _behind: str
    _strip: EventStrip | None

    def parts(self, event: SentEvent, time: int | None) -> tuple[bytes, ...] | None:
        if self._strip is not None and event.value is not None:
            stripped = self._stripped(event.value, self._strip)
            if stripped is None:
                return None
            event = stripped
        if event.value is None:
            rest = f"{self._stamp(event, time)},{self._unreadable(event.text)},}}"
        else:
            rest = self._stamp(event, time) + self._members(event.text, event.value)
        if self._rules.gateway:
            return self._in_gateway(rest)
        return _HEAD_BYTES, rest.encode()

    def _stripped(self, value: dict[str, Any], strip: EventStrip) -> SentEvent | None:
        """The event as it may be kept: nothing of the stamp is made of what was taken out of it."""
        if self._sent.context is not None and "context" not in value:
            value = {**value, "context": json.loads(self._sent.context)}
        stripped = strip.strip(value)
        return None if stripped is None else SentEvent(as_text(stripped), stripped)

    def _stamp(self, event: SentEvent, time: int | None) -> str:
        """The stamp from behind its number to its closing brace."""
        origin, name = _id_of(event, time, self._arrival.key)
        happened = self._arrival.received_ms if time is None else time + self._skew
        flags = self._flags(happened, skewed=self._skew != 0 and time is not None)
        return (
            f',"id":{name},"id_from":"{origin}",{self._ahead},"time":"{iso(happened)}",{self._behind}'
            f"{'' if event.value is not None else chr(44) + _KEPT}{flags}}}"
        )

    def _flags(self, happened: int, *, skewed: bool) -> str:
        age = self._arrival.received_ms - happened
        if -_FUTURE_MS <= age <= self._rules.late_ms and not skewed and not self._arrival.bot:
            return ""
        flags = [
            flag
            for flag, holds in (
                ("bot", self._arrival.bot),
                ("late", age > self._rules.late_ms),
                ("future", age < -_FUTURE_MS),
                ("skewed", skewed),
            )
            if holds
        ]
        return ',"flags":["' + '","'.join(flags) + '"]' if flags else ""

    def _members(self, text: str, value: dict[str, Any]) -> str:
        """Members of the event behind the stamp, to the end of the object."""
        if FIELD in value:
            text = without_member(text, FIELD)
        added = ""
        if self._rules.event_time:
            if "eventTime" in value:
                text = without_member(text, "eventTime")
            added = f',"eventTime":{self._arrival.received_ms // 1000}'
        if self._sent.context is not None and "context" not in value and self._strip is None:
            added += f',"context":{self._sent.context}'
        members = text[1:-1].strip()
        return f"{added},{members}}}" if members else f"{added}}}"

    def _unreadable(self, text: str) -> str:
        """What could not be read; of a source whose events are stripped only what it was like.

        Behind it stands a comma and no member, so that no parser takes it for an event, and brackets pair, so that it
        breaks nothing around it: the lake puts it into quarantine.
        """
        if self._strip is None:
            return f'"raw":{as_text(text)}'
        self._strip.unreadable(text)
        data = text.encode()
        return f'"raw_bytes":{len(data)},"raw_sha256":"{hashlib.sha256(data).hexdigest()}"'

    def _in_gateway(self, rest: str) -> tuple[bytes, ...]:
        wrapper = (
            '{"resource":"/v1/events","httpMethod":"POST","headers":{"Content-Type":"application/json"},'
            f'"requestContext":{{"stage":"collector","requestId":"{self._arrival.request}"}},"body":"'
        )
        return wrapper.encode() + orjson.dumps(_HEAD)[1:-1], orjson.dumps(rest)[1:-1] + b'"}'


_KEPT = '"kept":"malformed"'


def _id_of(event: SentEvent, time: int | None, key: bytes) -> tuple[str, str]:
    """Where the id of an event is from, and the id as JSON."""
    sent = event.value or {}
    for field in _IDS:
        value = sent.get(field)
        if type(value) is str and 0 < len(value) <= _LONGEST_ID:
            return "client", as_text(value)
        if type(value) is int:
            return "client", f'"{value}"'
    if time is not None or event.value is None:
        return "digest", f'"{hashlib.blake2b(event.text.encode(), digest_size=16, key=key[:64]).hexdigest()}"'
    return "random", f'"{os.urandom(16).hex()}"'


def _time_of(value: dict[str, Any] | None) -> int | None:
    if not value:
        return None
    for field in _TIMES:
        if field in value and (time := epoch_ms(value[field])) is not None:
            return time
    return None


def epoch_ms(value: Any) -> int | None:
    """Milliseconds since 1970 of a time as clients write it: ISO 8601, or seconds or milliseconds since 1970."""
    try:
        if type(value) is str:
            moment = datetime.fromisoformat(value)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            number = round(moment.timestamp() * 1000)
        elif type(value) in (int, float):
            number = round(value * 1000 if abs(value) < _SECONDS_BELOW else value)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return number if _FIRST_MS <= number <= _LAST_MS else None


def iso(epoch_milliseconds: int) -> str:
    """`2026-11-23T12:00:00.123Z`."""
    clamped = min(max(epoch_milliseconds, _FIRST_MS), _LAST_MS)
    return f"{_iso_second(clamped // 1000)}.{clamped % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _iso_second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat()[:19]


@lru_cache(maxsize=4096)
def is_bot(user_agent: bytes) -> bool:
    """Whether a client says that it is a program: such events are flagged and kept."""
    return _BOT.search(user_agent) is not None
