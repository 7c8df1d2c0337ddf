"""The collector as an ASGI application: reads requests, waits until their events are durable, and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, cast

import orjson

from collector.admission import FlightBytes, Hold, cors_headers
from collector.door import Admitted, Door, Head, Taken, new_request_id
from collector.metrics import Metrics
from collector.spool import NEARLY_FULL, Done, Entry, Written
from collector.verdicts import JSON_TYPE, Answer, refusal

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
log = logging.getLogger(__name__)
_CLOSE = (b"connection", b"close")
_SETTINGS = "/v1/projects/"
#: How many times the limit is read of a body that is too large, so that its client reads the answer.
_READ_TO_THE_END: Final = 4


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
            if admitted.code == "too_large":
                await self._body(receive, Hold(FlightBytes(self._limits.max_body_bytes)))
            return admitted
        return await self._take(admitted, receive)

    async def _take(self, admitted: Admitted, receive: Receive) -> Answer | None:
        """Read a body and make its events durable, its bytes counted as under way until then."""
        length = int(admitted.head.headers.get(b"content-length", b"0") or 0)
        hold = Hold(self._flight)
        try:
            if not hold.up_to(length):
                return refusal("busy", admitted.request_id)
            body = await self._body(receive, hold)
            if body is None or isinstance(body, str):
                return refusal(body, admitted.request_id) if body else None
            taken = self._door.read(admitted, body)
            if isinstance(taken, Answer):
                return taken
            return await self._accepted(taken, admitted.request_id)
        finally:
            hold.release()

    async def _accepted(self, taken: Taken, request_id: str) -> Answer:
        if not taken.entries:  # none of its events may be kept
            return taken.answer
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._acceptance.submit(taken.submission, partial(_finish, future))
        written = await future
        if written.problem is not None:
            return refusal(written.problem, request_id)
        events = self.metrics.events
        events[taken.source, "accepted"] += len(taken.entries) - taken.kept
        if taken.kept:
            events[taken.source, "kept"] += taken.kept
        return taken.answer

    async def _body(self, receive: Receive, hold: Hold) -> bytes | str | None:
        """The body; a code where it is too large, too slow or one too many; None where the client has gone."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task runs")
        self._reading[task] = None
        try:
            message = await receive()
            if message["type"] != "http.disconnect" and not message.get("more_body"):
                return cast("bytes", message.get("body", b""))
            return await self._pieces(message, receive, hold)
        except asyncio.CancelledError:
            if task in self._reading:
                raise
            task.uncancel()
            return "slow_body"
        finally:
            self._reading.pop(task, None)

    async def _pieces(self, message: Mapping[str, Any], receive: Receive, hold: Hold) -> bytes | str | None:
        """A body that comes in pieces.

        Of one that is too large some more is read and thrown away: a connection that is closed before its client has
        sent all may end in an error there, and the answer would not be read.
        """
        pieces: list[bytes] = []
        size, most = 0, self._limits.max_body_bytes
        while message["type"] != "http.disconnect":
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size <= most:
                pieces.append(piece)
                if not hold.up_to(size):
                    return "busy"
            if not message.get("more_body") or size > _READ_TO_THE_END * most:
                return b"".join(pieces) if size <= most else "too_large"
            message = await receive()
        return None

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
