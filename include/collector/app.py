"""The ASGI application: reads requests, waits until their events are durable, and responds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, cast

import orjson

from collector.admission import ByteReservation, InFlightBytes, cors_headers
from collector.metrics import Metrics
from collector.request_handler import AcceptedEvents, AdmittedRequest, RequestHandler, RequestHead, request_ids
from collector.responses import CLOSE_HEADER, JSON_CONTENT_TYPE, Response, reject
from collector.spool import NEARLY_FULL_RATIO
from collector.submissions import DurableWriter, WriteResult

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
log = logging.getLogger(__name__)
_SETTINGS_PATH = "/v1/projects/"
#: An oversized body is read up to this multiple of the limit, so that its client reads the response.
_MAX_OVERSIZE_FACTOR: Final = 4


class ServerState(Enum):
    """The lifecycle of the process."""

    RUNNING = "running"
    DRAINING = "leaving"
    CLOSED = "closed"


class CollectorApp:
    """The ASGI application. Limits the time of bodies, so slow clients do not affect other requests."""

    def __init__(self, handler: RequestHandler, writer: DurableWriter, *, metrics: Metrics | None = None) -> None:
        self.state = ServerState.RUNNING
        self.metrics = metrics or Metrics()
        self._handler = handler
        self._writer = writer
        self._limits = handler.spec.limits
        self._in_flight = InFlightBytes(self._limits.in_flight_bytes)
        self._body_deadlines: dict[asyncio.Task[Any], float | None] = {}
        self._new_id = request_ids()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        client = scope.get("client")
        sent, host = dict(scope["headers"]), client[0] if client else ""
        head = RequestHead(scope["method"], scope["path"], scope["query_string"], sent, host)
        try:
            response = await self._respond(head, receive)
        except Exception:  # an error rejects only this request, which the client retries
            log.exception("a request failed")
            response = reject("internal", self._new_id())
        if response is None:
            return
        response = self._finalize(head, response)
        headers = [*response.headers, (b"content-length", b"%d" % len(response.body))]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body if head.method != "HEAD" else b""})

    def handle_complete(self, head: RequestHead, body: bytes, reply: Callable[[Response], None]) -> bool:
        """Handles a POST with a complete body; returns False, without side effects, for other requests.

        Args:
            reply: called once with the response: immediately if the request is rejected, otherwise when its events are
                durable.
        """
        if head.method != "POST" or self.state is ServerState.CLOSED:
            return False
        request = _CompleteRequest(self, head, self._new_id(), reply)
        try:
            response = self._submit_complete(request, body)
        except Exception:  # an error rejects only this request, which the client retries
            log.exception("a request failed")
            response = reject("internal", request.request_id)
        if response is not None:
            request.respond(response)
        return True

    def _submit_complete(self, request: _CompleteRequest, body: bytes) -> Response | None:
        """Submits the events of a body; returns the response if there are none."""
        admitted = self._handler.admit(request.head, request.request_id)
        if isinstance(admitted, Response):
            return admitted
        if not self._in_flight.acquire(len(body)):
            return reject("busy", request.request_id)
        request.reserved_bytes = len(body)
        accepted = self._handler.read_events(admitted, body)
        if isinstance(accepted, Response):
            return accepted
        if not accepted.entries:
            return accepted.response
        request.accepted = accepted
        self._writer.submit(accepted.submission, request.on_written)
        return None

    def _count_accepted(self, accepted: AcceptedEvents) -> None:
        events = self.metrics.events
        events[accepted.source, "accepted"] += len(accepted.entries) - accepted.malformed_count
        if accepted.malformed_count:
            events[accepted.source, "kept"] += accepted.malformed_count

    def _finalize(self, head: RequestHead, response: Response) -> Response:
        """Counts the response in the metrics and adds CORS headers."""
        self.metrics.requests[response.status, response.code] += 1
        response = self._handler.with_cors(head, response)
        if self.state is not ServerState.RUNNING and not response.closes_connection:
            return Response(response.status, response.body, [*response.headers, CLOSE_HEADER], response.code)
        return response

    async def _respond(self, head: RequestHead, receive: Receive) -> Response | None:
        if head.method != "POST":
            return self._respond_without_body(head)
        request_id = self._new_id()
        if self.state is ServerState.CLOSED:
            return reject("draining", request_id)
        request = self._handler.admit(head, request_id)
        if isinstance(request, Response):
            if request.code == "too_large":
                await self._read_body(receive, ByteReservation(InFlightBytes(self._limits.max_body_bytes)))
            return request
        return await self._handle_body(request, receive)

    async def _handle_body(self, request: AdmittedRequest, receive: Receive) -> Response | None:
        """Reads a body and writes its events. Counts its bytes as in flight until the events are durable."""
        length = int(request.head.headers.get(b"content-length", b"0") or 0)
        reservation = ByteReservation(self._in_flight)
        try:
            if not reservation.grow_to(length):
                return reject("busy", request.request_id)
            body = await self._read_body(receive, reservation)
            if body is None or isinstance(body, str):
                return reject(body, request.request_id) if body else None
            accepted = self._handler.read_events(request, body)
            if isinstance(accepted, Response):
                return accepted
            return await self._write_events(accepted, request.request_id)
        finally:
            reservation.release()

    async def _write_events(self, accepted: AcceptedEvents, request_id: str) -> Response:
        if not accepted.entries:  # redaction dropped all events
            return accepted.response
        future: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._writer.submit(accepted.submission, partial(_resolve, future))
        written = await future
        if written.problem is not None:
            return reject(written.problem, request_id)
        self._count_accepted(accepted)
        return accepted.response

    async def _read_body(self, receive: Receive, reservation: ByteReservation) -> bytes | str | None:
        """Returns the body; an error code if it is too large, too slow or exceeds the bytes in flight; None if the
        client disconnected.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task runs")
        self._body_deadlines[task] = None
        try:
            message = await receive()
            if message["type"] != "http.disconnect" and not message.get("more_body"):
                return cast("bytes", message.get("body", b""))
            return await self._read_chunks(message, receive, reservation)
        except asyncio.CancelledError:
            if task in self._body_deadlines:
                raise
            task.uncancel()
            return "slow_body"
        finally:
            self._body_deadlines.pop(task, None)

    async def _read_chunks(
        self, message: Mapping[str, Any], receive: Receive, reservation: ByteReservation
    ) -> bytes | str | None:
        """Reads a body that arrives in chunks.

        Part of an oversized body is read and discarded: closing the connection before the client has sent everything
        may cause an error there, and the response would not be read.
        """
        chunks: list[bytes] = []
        size, max_bytes = 0, self._limits.max_body_bytes
        while message["type"] != "http.disconnect":
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size <= max_bytes:
                chunks.append(chunk)
                if not reservation.grow_to(size):
                    return "busy"
            if not message.get("more_body") or size > _MAX_OVERSIZE_FACTOR * max_bytes:
                return b"".join(chunks) if size <= max_bytes else "too_large"
            message = await receive()
        return None

    def reject_slow_bodies(self, now: float) -> None:
        """Rejects requests whose bodies did not arrive in time. Called about once per second.

        The time of a body starts with the first call that sees it, so bodies that arrive quickly need no clock.
        """
        for task, end in list(self._body_deadlines.items()):
            if end is None:
                self._body_deadlines[task] = now + self._limits.body_seconds
            elif end <= now:
                del self._body_deadlines[task]
                task.cancel()

    def _respond_without_body(self, head: RequestHead) -> Response:
        """Responds to requests without a body: health, readiness, settings, CORS preflight."""
        request_id = self._new_id()
        if head.method == "OPTIONS":
            origin = head.headers.get(b"origin", b"")
            if origin and self._handler.keys.is_known_origin(origin.decode("latin-1")):
                return Response(200, b"", cors_headers(origin, preflight=True)[3:])
            return reject("origin", request_id)
        if head.method in ("GET", "HEAD"):
            if head.path == "/health":
                return Response(200, b'{"status":"ok"}', [JSON_CONTENT_TYPE])
            if head.path == "/ready":
                return self._readiness()
            if head.path.startswith(_SETTINGS_PATH) and head.path.endswith("/settings"):
                return self._client_settings(head, head.path[len(_SETTINGS_PATH) : -len("/settings")], request_id)
        return self._handler.admit(head, request_id)  # type: ignore[return-value]

    def _readiness(self) -> Response:
        """Returns whether the process accepts more requests. Sinks do not count, because their outage would make every
        replica unready.
        """
        reason = self._writer.rejection_reason()
        if self.state is not ServerState.RUNNING:
            reason = "draining"
        elif reason is None and self._writer.fill_ratio() >= NEARLY_FULL_RATIO:
            reason = "spool_full"
        if reason is None:
            return Response(200, b'{"status":"ready"}', [JSON_CONTENT_TYPE])
        return Response(503, orjson.dumps({"status": "not ready", "code": reason}), [JSON_CONTENT_TYPE], reason)

    def _client_settings(self, head: RequestHead, key: str, request_id: str) -> Response:
        """Returns the settings that analytics.js requests before it sends: the endpoint, without other integrations."""
        if self._handler.keys.find_key(key) is None:
            return reject("bad_key", request_id)
        host = head.headers.get(b"host", b"").decode("latin-1")
        content = {
            "integrations": {"Segment.io": {"apiKey": key, "apiHost": f"{host}/v1", "unbundledIntegrations": []}},
            "plan": {"track": {"__default": {"enabled": True, "integrations": {}}}},
            "remotePlugins": [],
        }
        return Response(200, orjson.dumps(content), [JSON_CONTENT_TYPE])


class _CompleteRequest:
    """A request that arrived with its complete body; it lives until its response is sent."""

    __slots__ = ("_app", "_reply", "accepted", "head", "request_id", "reserved_bytes")

    def __init__(
        self, app: CollectorApp, head: RequestHead, request_id: str, reply: Callable[[Response], None]
    ) -> None:
        self.head = head
        self.request_id = request_id
        self.reserved_bytes = 0
        self.accepted: AcceptedEvents | None = None
        self._app = app
        self._reply = reply

    def on_written(self, written: WriteResult) -> None:
        """Responds according to the write result."""
        if written.problem is not None or self.accepted is None:
            self.respond(reject(written.problem or "internal", self.request_id))
            return
        self._app._count_accepted(self.accepted)
        self.respond(self.accepted.response)

    def respond(self, response: Response) -> None:
        """Sends the response and releases the request's bytes in flight."""
        self._app._in_flight.release(self.reserved_bytes)
        self.reserved_bytes = 0
        self._reply(self._app._finalize(self.head, response))


def _resolve(future: asyncio.Future[WriteResult], written: WriteResult) -> None:
    if not future.done():
        future.set_result(written)
