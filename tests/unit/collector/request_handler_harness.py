"""A request handler without a server, and the events it accepts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from collector.admission import Bounds
from collector.request_handler import AcceptedEvents, RequestHandler, RequestHead
from collector.responses import Response
from collector.stamps import SourceRedaction
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.specs.collector import CollectorSpec

KEY = "key of games"
#: 2026-11-23T12:00:00Z
NOW = 1_795_435_200.0
ORIGIN = "https://play.example.org"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def declared(source: Mapping[str, Any] | None = None, **more: Any) -> CollectorSpec:
    """Declares a collector of one source."""
    games = {"pipeline": "games", "keys": [{"sha256": digest(KEY)}], "origins": [ORIGIN], "sink": {"kind": "landing"}}
    return CollectorSpec.model_validate({"collector": "edge", "sources": {"games": games | dict(source or {})}, **more})


class HandlerHarness:
    """Sends requests to a request handler; event numbers increase as in a spool."""

    def __init__(
        self,
        spec: CollectorSpec | None = None,
        *,
        strip: SourceRedaction | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.now = NOW
        self.refusal: str | None = None
        self.door = RequestHandler(
            spec or declared(),
            collector_id="c0",
            source_numbers={"games": 0},
            rejection_reason=lambda: self.refusal,
            redactions={"games": strip} if strip else None,
            clock=lambda: self.now,
            bounds=bounds,
        )
        self.payloads: list[bytes] = []
        self.sealed: list[bytes] = []

    def send(
        self,
        body: bytes | str | object,
        path: str = "/v1/batch",
        *,
        key: str | None = KEY,
        method: str = "POST",
        **headers: str,
    ) -> Response:
        """One request; header names with underscores."""
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        if key is not None:
            named[b"authorization"] = b"Basic " + base64.b64encode(f"{key}:".encode())
        path, _, query = path.partition("?")
        head = RequestHead(method, path, query.encode(), named, "203.0.113.77")
        admitted = self.door.admit(head, "r1")
        outcome = admitted if isinstance(admitted, Response) else self.door.read_events(admitted, data)
        if isinstance(outcome, AcceptedEvents):
            if outcome.sealed is not None:
                self.sealed.append(outcome.sealed.parts[0])
            for entry in outcome.entries:
                number = b"%d" % (len(self.payloads) + 1)
                self.payloads.append(number.join(entry.parts))
            outcome = outcome.response
        return self.door.with_cors(head, outcome)

    def landed(self) -> list[Any]:
        """Returns the events, or `Malformed`, that the lake's parser reads from an object of all payloads."""
        return [value for value, _ in read_events(b"\n".join(self.payloads))]

    def events(self) -> list[dict[str, Any]]:
        """Returns the readable events."""
        return [value for value in self.landed() if not isinstance(value, Malformed)]


def content(answer: Response) -> dict[str, Any]:
    return dict(json.loads(answer.body))


def code(answer: Response) -> tuple[int, str]:
    """Returns status and error code; the code of a success is empty."""
    return answer.status, content(answer).get("code", "")
