"""The collector as an ASGI application: reads requests, waits until their events are durable, and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, cast

import orjson

from collector.admission import FlightBytes, Hold, cors_headers
from collector.door import Admitted, Door, Head, Taken, request_ids
from collector.metrics import Metrics
from collector.spool import NEARLY_FULL
from collector.submissions import Acceptance, Written
from collector.verdicts import CLOSE, JSON_TYPE, Answer, refusal

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
log = logging.getLogger(__name__)
_SETTINGS = "/v1/projects/"
#: How many times the limit is read of a body that is too large, so that its client reads the answer.
_READ_TO_THE_END: Final = 4


class State(Enum):
    """Where the process is between its start and its end."""

    RUNNING = "running"
    LEAVING = "leaving"
    CLOSED = "closed"


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
        self._new_id = request_ids()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        client = scope.get("client")
        sent, host = dict(scope["headers"]), client[0] if client else ""
        head = Head(scope["method"], scope["path"], scope["query_string"], sent, host)
        try:
            answer = await self._answer(head, receive)
        except Exception:  # a fault of ours turns one request away, which comes again
            log.exception("a request failed")
            answer = refusal("internal", self._new_id())
        if answer is None:
            return
        answer = self._finished(head, answer)
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body if head.method != "HEAD" else b""})

    def take_whole(self, head: Head, body: bytes, reply: Callable[[Answer], None]) -> bool:
        """Take a POST whose body is there; False, and nothing done, for all other requests.

        Args:
            reply: is given the answer, once: at once where the request is turned away, else when its events are
                durable.
        """
        if head.method != "POST" or self.state is State.CLOSED:
            return False
        whole = _Whole(self, head, self._new_id(), reply)
        try:
            answer = self._submitted(whole, body)
        except Exception:  # as above
            log.exception("a request failed")
            answer = refusal("internal", whole.request_id)
        if answer is not None:
            whole.answer(answer)
        return True

    def _submitted(self, whole: _Whole, body: bytes) -> Answer | None:
        """Have the events of a body made durable; the answer where none are."""
        admitted = self._door.admit(whole.head, whole.request_id)
        if isinstance(admitted, Answer):
            return admitted
        if not self._flight.take(len(body)):
            return refusal("busy", whole.request_id)
        whole.held_bytes = len(body)
        taken = self._door.read(admitted, body)
        if isinstance(taken, Answer):
            return taken
        if not taken.entries:
            return taken.answer
        whole.taken = taken
        self._acceptance.submit(taken.submission, whole.written)
        return None

    def _count(self, taken: Taken) -> None:
        events = self.metrics.events
        events[taken.source, "accepted"] += len(taken.entries) - taken.kept
        if taken.kept:
            events[taken.source, "kept"] += taken.kept

    def _finished(self, head: Head, answer: Answer) -> Answer:
        """The answer as it goes out, counted."""
        self.metrics.requests[answer.status, answer.code] += 1
        answer = self._door.with_cors(head, answer)
        if self.state is not State.RUNNING and not answer.closes:
            return Answer(answer.status, answer.body, [*answer.headers, CLOSE], answer.code)
        return answer

    async def _answer(self, head: Head, receive: Receive) -> Answer | None:
        if head.method != "POST":
            return self._without_body(head)
        request_id = self._new_id()
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
        self._count(taken)
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

    def _without_body(self, head: Head) -> Answer:
        """Answers that need no body: health, readiness, settings, a browser's question before it sends."""
        request_id = self._new_id()
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


class _Whole:
    """A request whose body was there at once, until it is answered."""

    __slots__ = ("_app", "_reply", "head", "held_bytes", "request_id", "taken")

    def __init__(self, app: CollectorApp, head: Head, request_id: str, reply: Callable[[Answer], None]) -> None:
        self.head = head
        self.request_id = request_id
        self.held_bytes = 0
        self.taken: Taken | None = None
        self._app = app
        self._reply = reply

    def written(self, written: Written) -> None:
        """Answer what became of the events."""
        if written.problem is not None or self.taken is None:
            self.answer(refusal(written.problem or "internal", self.request_id))
            return
        self._app._count(self.taken)
        self.answer(self.taken.answer)

    def answer(self, answer: Answer) -> None:
        """Answer, and give back what the request had of the bytes under way."""
        self._app._flight.give_back(self.held_bytes)
        self.held_bytes = 0
        self._reply(self._app._finished(self.head, answer))


def _finish(future: asyncio.Future[Written], written: Written) -> None:
    if not future.done():
        future.set_result(written)
