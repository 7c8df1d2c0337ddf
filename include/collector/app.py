"""The collector as an ASGI application: reads requests, waits until their events are durable, and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Protocol

import orjson

from collector.admission import FlightBytes, cors_headers
from collector.door import Admitted, Door, Head, Taken, new_request_id
from collector.metrics import Metrics
from collector.spool import NEARLY_FULL, Done, Entry, Written
from collector.verdicts import JSON_TYPE, Answer, refusal

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
log = logging.getLogger(__name__)
_CLOSE = (b"connection", b"close")
_SETTINGS = "/v1/projects/"


class State(Enum):
    """Where the process is between its start and its end."""

    RUNNING = "running"
    LEAVING = "leaving"
    CLOSED = "closed"


class Acceptance(Protocol):
    """What makes events durable: the spool, or a sink itself."""

    def submit(self, entries: list[Entry], done: Done) -> None:
        """Have entries made durable; `done` is given what became of them."""

    def refusal(self) -> str | None:
        """Why nothing can be taken now."""

    def fill(self) -> float:
        """How full it is, from 0 to 1."""


class CollectorApp:
    """Takes requests. Bodies that do not come and connections beyond the limit cost the others nothing."""

    def __init__(self, door: Door, acceptance: Acceptance, *, metrics: Metrics | None = None) -> None:
        self.state = State.RUNNING
        self.metrics = metrics or Metrics()
        self._door = door
        self._acceptance = acceptance
        self._limits = door.spec.limits
        self._flight = FlightBytes(self._limits.in_flight_bytes)
        self._reading: dict[asyncio.Task[Any], float | None] = {}

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        client = scope.get("client")
        headers = dict(scope["headers"])
        head = Head(scope["method"], scope["path"], scope["query_string"], headers, client[0] if client else "")
        try:
            answer = await self._answer(head, receive)
        except Exception:  # a fault of ours turns one request away, which comes again
            log.exception("a request failed")
            answer = refusal("internal", new_request_id())
        if answer is None:
            return
        self.metrics.requests[str(answer.status), answer.code] += 1
        await self._send(head, answer, send)

    async def _answer(self, head: Head, receive: Receive) -> Answer | None:
        if head.method != "POST":
            return self._without_body(head)
        request_id = new_request_id()
        if self.state is State.CLOSED:
            return refusal("draining", request_id)
        admitted = self._door.admit(head, request_id)
        if isinstance(admitted, Answer):
            return admitted
        return await self._take(admitted, receive)

    async def _take(self, admitted: Admitted, receive: Receive) -> Answer | None:
        """Read a body and make its events durable, its bytes counted as under way until then."""
        held = int(admitted.head.headers.get(b"content-length", b"0") or 0)
        if not self._flight.take(held):
            return refusal("busy", admitted.request_id)
        try:
            body = await self._body(receive)
            if body is None or isinstance(body, str):
                return refusal(body, admitted.request_id) if body else None
            more = max(0, len(body) - held)
            held += more if self._flight.take(more) else 0
            taken = self._door.read(admitted, body)
            if isinstance(taken, Answer):
                return taken
            return await self._accepted(taken, admitted.request_id)
        finally:
            self._flight.give_back(held)

    async def _accepted(self, taken: Taken, request_id: str) -> Answer:
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._acceptance.submit(taken.entries, partial(_finish, future))
        written = await future
        if written.problem is not None:
            return refusal(written.problem, request_id)
        events = self.metrics.events
        events[taken.source, "accepted"] += len(taken.entries) - taken.kept
        if taken.kept:
            events[taken.source, "kept"] += taken.kept
        return taken.answer

    async def _body(self, receive: Receive) -> bytes | str | None:
        """The body; a code where it is too large or too slow; None where the client has gone."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task runs")
        self._reading[task] = None
        try:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body: bytes = message.get("body", b"")
            if not message.get("more_body"):
                return body
            pieces, size = [body], len(body)
            while size <= self._limits.max_body_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if not message.get("more_body"):
                    return b"".join(pieces)
            return "too_large"
        except asyncio.CancelledError:
            if task in self._reading:
                raise
            task.uncancel()
            return "slow_body"
        finally:
            self._reading.pop(task, None)

    def end_slow_bodies(self, now: float) -> None:
        """Turn away the requests whose bodies have not come in time; to be called about every second.

        The time of a body begins with the first call that sees it: most bodies are there before, and cost no clock.
        """
        for task, end in list(self._reading.items()):
            if end is None:
                self._reading[task] = now + self._limits.body_seconds
            elif end <= now:
                del self._reading[task]
                task.cancel()

    async def _send(self, head: Head, answer: Answer, send: Send) -> None:
        headers = self._door.with_cors(head, answer).headers
        if self.state is not State.RUNNING and _CLOSE not in headers:
            headers = [*headers, _CLOSE]
        headers = [*headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body if head.method != "HEAD" else b""})

    def _without_body(self, head: Head) -> Answer:
        """Answers that need no body: health, readiness, settings, a browser's question before it sends."""
        request_id = new_request_id()
        if head.method == "OPTIONS":
            origin = head.headers.get(b"origin", b"")
            if origin and self._door.keys.anyone_takes_origin(origin.decode("latin-1")):
                return Answer(200, b"", cors_headers(origin, preflight=True)[3:])
            return refusal("origin", request_id)
        if head.method in ("GET", "HEAD"):
            if head.path == "/health":
                return Answer(200, b'{"status":"ok"}', [JSON_TYPE])
            if head.path == "/ready":
                return self._readiness()
            if head.path.startswith(_SETTINGS) and head.path.endswith("/settings"):
                return self._settings(head, head.path[len(_SETTINGS) : -len("/settings")], request_id)
        return self._door.admit(head, request_id)  # type: ignore[return-value]

    def _readiness(self) -> Answer:
        """Whether more should be sent here. Sinks do not count: their outage would take every replica away."""
        problem = self._acceptance.refusal()
        if self.state is not State.RUNNING:
            problem = "draining"
        elif problem is None and self._acceptance.fill() >= NEARLY_FULL:
            problem = "spool_full"
        if problem is None:
            return Answer(200, b'{"status":"ready"}', [JSON_TYPE])
        return Answer(503, orjson.dumps({"status": "not ready", "code": problem}), [JSON_TYPE], problem)

    def _settings(self, head: Head, key: str, request_id: str) -> Answer:
        """What analytics.js asks for before it sends: where to, and that nothing else is switched on."""
        if self._door.keys.of_key(key) is None:
            return refusal("bad_key", request_id)
        host = head.headers.get(b"host", b"").decode("latin-1")
        content = {
            "integrations": {"Segment.io": {"apiKey": key, "apiHost": f"{host}/v1", "unbundledIntegrations": []}},
            "plan": {"track": {"__default": {"enabled": True, "integrations": {}}}},
            "remotePlugins": [],
        }
        return Answer(200, orjson.dumps(content), [JSON_TYPE])


def _finish(future: asyncio.Future[Written], written: Written) -> None:
    if not future.done():
        future.set_result(written)
