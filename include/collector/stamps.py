"""Adds the member `_collector` (the stamp) to the text of each event: time, id, source and request origin.

The rest of the event is unchanged. An event's number is assigned when it is written, so an event is returned as two
text parts, and the writer inserts the number between them.
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

from collector.bodies import EVENTS_PER_STEP, RequestBody, SentEvent, Steps, TooLargeError
from collector.lossless_json import dump_exactly, dump_json, remove_member
from deltaworks.errors import DeltaworksError

STAMP_FIELD: Final = "_collector"


class RequestRedaction(Protocol):
    """The redaction of one request's events, before they are stored."""

    def redact(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the redacted event; None if it must not be stored."""

    def record_unreadable(self, text: str) -> None:
        """Records text that cannot be parsed."""

    def sealed_payload(self, request: str) -> bytes | None:
        """Returns the payload of the request's sealed frame, if any."""


class SourceRedaction(Protocol):
    """Redacts the events of a source."""

    def begin_request(self, received_ms: int) -> RequestRedaction:
        """Starts the redaction of a request's events."""


_VERSION = 1
_STAMP_START = f'{{"{STAMP_FIELD}":{{"v":{_VERSION},"seq":'
_STAMP_START_BYTES = _STAMP_START.encode()
_ID_FIELDS = ("messageId", "event_id", "id")
_TIME_FIELDS = ("timestamp", "originalTimestamp", "time", "eventTime", "client_event_time")
_MAX_ID_LENGTH = 256
#: Senders choose the length of a user agent, and it is the key of a cache.
_MAX_USER_AGENT_BYTES = 256
_BOT_USER_AGENT = re.compile(
    rb"bot\b|crawl|spider|slurp|headless|lighthouse|python-requests|^curl/|^wget/", re.IGNORECASE
)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_MAX_EPOCH_SECONDS = 100_000_000_000
_MAX_FUTURE_MS = 5 * 60_000


class RequestOrigin(NamedTuple):
    """Origin and time of a request. `address` is truncated; `key` is the digest of the write key."""

    source: str
    key: bytes
    collector: str
    request: str
    received_ms: int
    address: str | None = None
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class StampRules:
    """Thresholds for clock skew and late events in milliseconds, and the layout of events.

    `wrap_api_gateway` puts an event into the `body` of an API Gateway request. `add_event_time` adds the time of
        receipt as
    `eventTime`.
    """

    skew_ms: int
    late_ms: int
    wrap_api_gateway: bool = False
    add_event_time: bool = False
    redaction: SourceRedaction | None = None


def stamp_events(
    body: RequestBody,
    arrival: RequestOrigin,
    rules: StampRules,
    redaction: RequestRedaction | None = None,
    *,
    max_bytes: int = 1 << 40,
) -> Steps[list[tuple[bytes, ...] | None]]:
    """Returns, in steps, the events of a request with their stamp, each as text parts between which the event's number
    is inserted.

    An event is None if redaction finds that it must not be stored. An event that cannot be redacted or stamped becomes
    malformed, in `body` too, and does not affect the others.

    Args:
        redaction: redacts each event before it is stamped.
        max_bytes: limit of all events with their stamps and the batch's context.

    Raises:
        TooLargeError: the limit is exceeded. Checked before the events are created, as far as the context exceeds it.
    """
    if body.context is not None:
        copies = sum(event.value is not None and "context" not in event.value for event in body.events)
        if copies * len(body.context) > max_bytes:
            raise TooLargeError
    events, times = body.events, list[int | None]()
    for start in range(0, len(events), 4 * EVENTS_PER_STEP):
        if start:
            yield
        times += [_event_time(event.value) for event in events[start : start + 4 * EVENTS_PER_STEP]]
    sent_ms = epoch_ms(body.sent_at)
    skew = _clock_skew(sent_ms, times, arrival.received_ms, rules.skew_ms)
    before_time, after_time = _shared_members(sent_ms, skew, arrival)
    writer = _StampWriter(body, arrival, rules, skew or 0, before_time, after_time, redaction)
    stamped, size = list[tuple[bytes, ...] | None](), 0
    for start in range(0, len(events), EVENTS_PER_STEP):
        if start:
            yield
        for index in range(start, min(start + EVENTS_PER_STEP, len(events))):
            parts = writer.encoded_parts(index, times[index])
            if parts is not None:
                size += len(parts[0]) + len(parts[1])
                if size > max_bytes:
                    raise TooLargeError
            stamped.append(parts)
    body.stamped_bytes = size
    return stamped


def _clock_skew(sent_ms: int | None, times: list[int | None], received_ms: int, threshold_ms: int) -> int | None:
    """Returns the clock skew of the sender in milliseconds; None if it is below the threshold or unknown.

    A smaller difference is the request's duration, and correcting it would reorder a device's events. A send time
    before the latest event belongs to an earlier attempt.
    """
    if sent_ms is None or abs(received_ms - sent_ms) <= threshold_ms:
        return None
    latest = max((time for time in times if time is not None), default=sent_ms)
    return received_ms - sent_ms if sent_ms >= latest else None


def _shared_members(sent_ms: int | None, skew: int | None, arrival: RequestOrigin) -> tuple[str, str]:
    """Returns the parts of the stamp that all events of a request share: those before and those after the
    event's time."""
    before_time = f'"received_at":"{iso(arrival.received_ms)}"'
    if sent_ms is not None:
        before_time += f',"sent_at":"{iso(sent_ms)}","skew_ms":{arrival.received_ms - sent_ms}'
    after_time = f'"source":"{arrival.source}","collector":"{arrival.collector}","request":"{arrival.request}"'
    if arrival.address is not None:
        after_time += f',"ip":"{arrival.address}"'
    return before_time, after_time


@dataclass(slots=True)
class _StampWriter:
    """Adds stamps to the events of one request."""

    _sent: RequestBody
    _arrival: RequestOrigin
    _rules: StampRules
    _skew: int
    _members_before_time: str
    _members_after_time: str
    _redaction: RequestRedaction | None

    def encoded_parts(self, index: int, time: int | None) -> tuple[bytes, ...] | None:
        """Returns the parts of an event, or of its text as malformed if it cannot be redacted or stamped."""
        event = self._sent.events[index]
        try:
            return self._encode(event, time)
        except DeltaworksError:
            raise
        except Exception:  # any error of one event would otherwise reject its batch at every retry
            if event.value is None:
                raise
            event = self._sent.events[index] = SentEvent(event.text, None)
            return self._encode(event, time)

    def _encode(self, event: SentEvent, time: int | None) -> tuple[bytes, ...] | None:
        if self._redaction is not None and event.value is not None:
            redacted = self._redact(event.text, event.value, self._redaction)
            if redacted is None:
                return None
            event = redacted
        if event.value is None:
            rest = f"{self._stamp(event, time)},{self._unreadable_members(event.text)},}}"
        else:
            rest = self._stamp(event, time) + self._event_members(event.text, event.value)
            if "\n" in rest or "\r" in rest:  # only between tokens, and an event is a line of a landed object
                rest = rest.replace("\r", " ").replace("\n", " ")
        if self._rules.wrap_api_gateway:
            return self._wrap_api_gateway(rest)
        return _STAMP_START_BYTES, rest.encode()

    def _redact(self, text: str, value: dict[str, Any], redaction: RequestRedaction) -> SentEvent | None:
        """Returns the redacted event. The stamp is computed from it, so it contains no removed value.

        Raises:
            ValueError: it contains a number that cannot be written again.
        """
        sources = [text]
        if self._sent.context is not None and "context" not in value:
            value = {**value, "context": json.loads(self._sent.context)}
            sources.append(self._sent.context)
        redacted = redaction.redact(value)
        return None if redacted is None else SentEvent(dump_exactly(redacted, sources), redacted)

    def _stamp(self, event: SentEvent, time: int | None) -> str:
        """Returns the rest of the stamp: from after the event number to its closing brace."""
        origin, name = _event_id(event, time, self._arrival.key)
        event_ms = self._arrival.received_ms if time is None else time + self._skew
        flags = self._flags(event_ms, skewed=self._skew != 0 and time is not None)
        return (
            f',"id":{name},"id_from":"{origin}",{self._members_before_time},"time":"{iso(event_ms)}",{self._members_after_time}'
            f"{'' if event.value is not None else chr(44) + _MALFORMED_MEMBER}{flags}}}"
        )

    def _flags(self, event_ms: int, *, skewed: bool) -> str:
        age = self._arrival.received_ms - event_ms
        if -_MAX_FUTURE_MS <= age <= self._rules.late_ms and not skewed and not self._arrival.is_bot:
            return ""
        flags = [
            flag
            for flag, holds in (
                ("bot", self._arrival.is_bot),
                ("late", age > self._rules.late_ms),
                ("future", age < -_MAX_FUTURE_MS),
                ("skewed", skewed),
            )
            if holds
        ]
        return ',"flags":["' + '","'.join(flags) + '"]' if flags else ""

    def _event_members(self, text: str, value: dict[str, Any]) -> str:
        """Returns the event's own members, which follow the stamp, up to the closing brace."""
        if STAMP_FIELD in value:
            text = remove_member(text, STAMP_FIELD)
        added = ""
        if self._rules.add_event_time:
            if "eventTime" in value:
                text = remove_member(text, "eventTime")
            added = f',"eventTime":{self._arrival.received_ms // 1000}'
        if self._sent.context is not None and "context" not in value and self._redaction is None:
            added += f',"context":{self._sent.context}'
        members = text[1:-1].strip()
        return f"{added},{members}}}" if members else f"{added}}}"

    def _unreadable_members(self, text: str) -> str:
        """Returns the members for unreadable text: the text itself; for redacted sources only its size and digest.

        The caller adds a trailing comma, so that no parser accepts the result as an event and the lake quarantines it.
        Brackets are balanced, so neighbouring events are not affected.
        """
        if self._redaction is None:
            return f'"raw":{dump_json(text)}'
        self._redaction.record_unreadable(text)
        data = text.encode()
        return f'"raw_bytes":{len(data)},"raw_sha256":"{hashlib.sha256(data).hexdigest()}"'

    def _wrap_api_gateway(self, rest: str) -> tuple[bytes, ...]:
        wrapper = (
            '{"resource":"/v1/events","httpMethod":"POST","headers":{"Content-Type":"application/json"},'
            f'"requestContext":{{"stage":"collector","requestId":"{self._arrival.request}"}},"body":"'
        )
        return wrapper.encode() + orjson.dumps(_STAMP_START)[1:-1], orjson.dumps(rest)[1:-1] + b'"}'


_MALFORMED_MEMBER = '"kept":"malformed"'


def _event_id(event: SentEvent, time: int | None, key: bytes) -> tuple[str, str]:
    """Returns where an event's id comes from (`client`, `digest` or `random`), and the id as JSON."""
    body = event.value or {}
    for field in _ID_FIELDS:
        value = body.get(field)
        if type(value) is str and 0 < len(value) <= _MAX_ID_LENGTH:
            return "client", dump_json(value)
        if type(value) is int:
            return "client", f'"{value}"'
    if time is not None or event.value is None:
        return "digest", f'"{hashlib.blake2b(event.text.encode(), digest_size=16, key=key[:64]).hexdigest()}"'
    return "random", f'"{os.urandom(16).hex()}"'


def _event_time(value: dict[str, Any] | None) -> int | None:
    if not value:
        return None
    for field in _TIME_FIELDS:
        if field in value and (time := epoch_ms(value[field])) is not None:
            return time
    return None


def epoch_ms(value: Any) -> int | None:
    """Parses a client's time (ISO 8601, or seconds or milliseconds since 1970) to milliseconds since 1970."""
    try:
        if type(value) is str:
            moment = datetime.fromisoformat(value)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            number = round(moment.timestamp() * 1000)
        elif type(value) in (int, float):
            number = round(value * 1000 if abs(value) < _MAX_EPOCH_SECONDS else value)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return number if _FIRST_MS <= number <= _LAST_MS else None


def iso(epoch_milliseconds: int) -> str:
    """Formats a time like `2026-11-23T12:00:00.123Z`."""
    clamped = min(max(epoch_milliseconds, _FIRST_MS), _LAST_MS)
    return f"{_iso_second(clamped // 1000)}.{clamped % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _iso_second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat()[:19]


def is_bot(user_agent: bytes) -> bool:
    """Returns whether a user agent identifies a program. Events of bots are stored with the flag `bot`."""
    return _is_bot(user_agent[:_MAX_USER_AGENT_BYTES])


@lru_cache(maxsize=4096)
def _is_bot(user_agent: bytes) -> bool:
    return _BOT_USER_AGENT.search(user_agent) is not None
