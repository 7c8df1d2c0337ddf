"""The wire format of events, and of malformed records.

An event is `{"eventName", "eventTime": epoch seconds, "eventParams": {...}}`, as a string under `body` of an API
Gateway request. Objects are concatenated without separators.

A reader must recover every well-formed request between malformed records, and one quarantine row per malformed record.
Three properties make this result unambiguous:

- Every request begins with `{"resource":`, and these bytes occur nowhere else: quotes inside a body are escaped.
- No complete JSON object starts inside a malformed record. A truncated request ends inside or before its body, nested
  objects follow the body, and no event has an empty object (`{}`). So a reader that resumes at the next `{"resource":`
  and one that resumes at the next complete object give the same result.
- Malformed records are never adjacent in a file (`generator.packing` ensures it), so the number of unreadable byte
  ranges equals the number of malformed records, wherever a reader resumes.

`generator.reference_scan` is such a reader; a test verifies these properties on generated files.
"""

from __future__ import annotations

from random import Random
from typing import Any

import orjson

RECORD_START = b'{"resource":'
_HTTP_HEAD_END = RECORD_START + b'"/v1/events","httpMethod":"POST","body":'
_AFTER_BODY = (
    b',"headers":{"Content-Type":"application/json"},'
    b'"requestContext":{"stage":"prod","requestId":"%032x","identity":{"sourceIp":"%s"}}}'
)

#: Kinds of malformed records. Each replaces an event.
FRAMING_KINDS = ("truncated", "garbage", "invalid_utf8", "not_an_object")
BODY_KINDS = ("body_missing", "body_empty", "body_not_json", "body_not_an_object")
MALFORMED_KINDS = FRAMING_KINDS + BODY_KINDS
_GARBAGE = bytes(range(0x80, 0xC0)) + b"xqz#%"
# No arrays, since their elements would be read as separate events. No strings, since a quote after an object would make
# the object look like text inside a truncated body.
_NON_OBJECTS = (b"17", b"true", b"-4.5")
_NON_OBJECT_BODIES = (b'"true"', b'"\\"ping\\""', b'"17"')


def event_json(name: str, event_time: int | None, params: dict[str, Any]) -> bytes:
    """Returns an event as JSON; omits a missing time."""
    event: dict[str, Any] = {"eventName": name}
    if event_time is not None:
        event["eventTime"] = event_time
    event["eventParams"] = params
    return orjson.dumps(event)


def request_json(event: bytes, request_id: int, source_ip: str) -> bytes:
    """Returns the request that carries an event."""
    return _wrap_body(orjson.dumps(event.decode()), request_id, source_ip)


def malformed_piece(kind: str, rng: Random, event: bytes, request_id: int, source_ip: str) -> bytes:
    """Returns a record of one of MALFORMED_KINDS in place of `event`."""
    if kind in BODY_KINDS:
        return _wrap_body(_malformed_body(kind, rng, event), request_id, source_ip)
    body = orjson.dumps(event.decode())
    if kind == "truncated":
        # keeps at least the first brace and at most everything before the body's closing quote
        return (_HTTP_HEAD_END + body)[: rng.randrange(1, len(_HTTP_HEAD_END) + len(body))]
    if kind == "garbage":
        return bytes(rng.choices(_GARBAGE, k=rng.randrange(1, 60)))
    if kind == "invalid_utf8":
        # before the event, so that the record stays unreadable when a reader replaces the invalid bytes
        return _HTTP_HEAD_END + b'"\xff\xfe' + body[1:] + b"}"
    return rng.choice(_NON_OBJECTS)


def _malformed_body(kind: str, rng: Random, event: bytes) -> bytes:
    if kind == "body_missing":
        return b"null"
    if kind == "body_empty":
        return b'""'
    if kind == "body_not_json":
        return orjson.dumps(event[: rng.randrange(1, len(event))].decode(errors="ignore"))
    return rng.choice(_NON_OBJECT_BODIES)


def _wrap_body(body: bytes, request_id: int, source_ip: str) -> bytes:
    return _HTTP_HEAD_END + body + _AFTER_BODY % (request_id, source_ip.encode())
