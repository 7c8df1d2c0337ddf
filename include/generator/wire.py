"""How an event looks on the wire, and how a piece looks that is broken.

An event is `{"eventName", "eventTime": epoch seconds, "eventParams": {...}}`, travelling as a string under `body` of an
API-Gateway request. Objects are concatenated without anything between them.

What a reader is expected to recover. Every well-formed request between broken pieces, and one quarantine row for
each broken piece. That this has one answer is arranged here:

- Every request begins with `{"resource":`, and these bytes occur nowhere else: inside a body quotes are escaped.
- A cut-off request ends inside its body or before, and the nested objects of a request come after its body. So a
  broken piece holds no position from which a whole JSON object could be read: no empty object (`{}`) occurs in any
  event. A reader that resumes at the next `{"resource":` and one that resumes wherever the next whole object can be
  read agree.
- Broken pieces are never neighbours in a file (`generator.packing` sees to it): counting the stretches of unreadable
  bytes gives the number of pieces, whatever way a reader resumes.

`generator.reference_scan` is such a reader; a test proves it on generated files.
"""

from __future__ import annotations

from random import Random
from typing import Any

import orjson

RECORD_START = b'{"resource":'
_BEFORE_BODY = RECORD_START + b'"/v1/events","httpMethod":"POST","body":'
_AFTER_BODY = (
    b',"headers":{"Content-Type":"application/json"},'
    b'"requestContext":{"stage":"prod","requestId":"%032x","identity":{"sourceIp":"%s"}}}'
)

#: Broken pieces: what each kind is, and that it takes the place of an event.
FRAMING_KINDS = ("truncated", "garbage", "invalid_utf8", "not_an_object")
BODY_KINDS = ("body_missing", "body_empty", "body_not_json", "body_not_an_object")
MALFORMED_KINDS = FRAMING_KINDS + BODY_KINDS
_GARBAGE = bytes(range(0x80, 0xC0)) + b"xqz#%"
# No array, in a body neither: its elements are events of their own. No string: a quote behind an object looks as if the
# object were text inside a cut-off body.
_NON_OBJECTS = (b"17", b"true", b"-4.5")
_NON_OBJECT_BODIES = (b'"true"', b'"\\"ping\\""', b'"17"')


def event_json(name: str, event_time: int | None, params: dict[str, Any]) -> bytes:
    """The event itself; without a time where there is none."""
    event: dict[str, Any] = {"eventName": name}
    if event_time is not None:
        event["eventTime"] = event_time
    event["eventParams"] = params
    return orjson.dumps(event)


def request_json(event: bytes, request_id: int, source_ip: str) -> bytes:
    """The request that carries an event."""
    return _wrap_body(orjson.dumps(event.decode()), request_id, source_ip)


def malformed_piece(kind: str, rng: Random, event: bytes, request_id: int, source_ip: str) -> bytes:
    """A piece of one of MALFORMED_KINDS that takes the place of `event`."""
    if kind in BODY_KINDS:
        return _wrap_body(_malformed_body(kind, rng, event), request_id, source_ip)
    body = orjson.dumps(event.decode())
    if kind == "truncated":
        # down to a single brace, up to the whole body without its closing quote
        return (_BEFORE_BODY + body)[: rng.randrange(1, len(_BEFORE_BODY) + len(body))]
    if kind == "garbage":
        return bytes(rng.choices(_GARBAGE, k=rng.randrange(1, 60)))
    if kind == "invalid_utf8":
        # ahead of the event, so that replacing the bytes does not make it readable either
        return _BEFORE_BODY + b'"\xff\xfe' + body[1:] + b"}"
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
    return _BEFORE_BODY + body + _AFTER_BODY % (request_id, source_ip.encode())
