"""The application behind the front: admits requests, makes their events durable, and responds."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial

import orjson

from collector.admission import ByteReservation, cors_headers
from collector.bodies import Steps
from collector.metrics import Metrics
from collector.request_handler import AcceptedEvents, AdmittedRequest, RequestHandler, RequestHead, request_ids
from collector.responses import CLOSE_HEADER, JSON_CONTENT_TYPE, Response, reject
from collector.spool import NEARLY_FULL_RATIO
from collector.submissions import DurableWriter, WriteResult

log = logging.getLogger(__name__)
_SETTINGS_PATH = "/v1/projects/"
_EventSteps = Steps[AcceptedEvents | Response]


class ServerState(Enum):
    """The lifecycle of the process."""

    RUNNING = "running"
    DRAINING = "leaving"
    CLOSED = "closed"


class CollectorApp:
    """The application of a front (`collector.connections`)."""

    def __init__(self, handler: RequestHandler, writer: DurableWriter, *, metrics: Metrics | None = None) -> None:
        self.state = ServerState.RUNNING
        self.metrics = metrics or Metrics()
        self._handler = handler
        self._writer = writer
        self._new_id = request_ids()
        #: Requests of many events, in progress.
        self._jobs: deque[tuple[AdmittedRequest, ByteReservation, Callable[[Response], None], _EventSteps]] = deque()

    def begin(self, head: RequestHead) -> AdmittedRequest | Response:
        """Returns the admitted request, whose body is read; otherwise its response."""
        try:
            begun = self._begin(head)
        except Exception:  # an error rejects only this request, which the client retries
            log.exception("a request failed")
            begun = reject("internal", self._new_id())
        return self._finalize(head, begun) if isinstance(begun, Response) else begun

    def _begin(self, head: RequestHead) -> AdmittedRequest | Response:
        if head.method != "POST":
            return self._respond_without_body(head)
        request_id = self._new_id()
        if self.state is ServerState.CLOSED:
            return reject("draining", request_id)
        return self._handler.admit(head, request_id)

    def complete(
        self, request: AdmittedRequest, body: bytes, reservation: ByteReservation, reply: Callable[[Response], None]
    ) -> None:
        """Handles a complete body. Its events count as in flight until they are durable.

        Args:
            reply: called once with the response: immediately if the request is rejected, otherwise when its events are
                durable.
        """
        steps = self._handler.read_in_steps(request, body)
        if self._advance(request, reservation, reply, steps):
            return
        if not self._jobs:
            asyncio.get_running_loop().call_soon(self._advance_next)
        self._jobs.append((request, reservation, reply, steps))

    def _advance_next(self) -> None:
        """Does one step of one request, so that requests of few events wait for one step only."""
        job = self._jobs.popleft()
        if not self._advance(*job):
            self._jobs.append(job)
        if self._jobs:
            asyncio.get_running_loop().call_soon(self._advance_next)

    def _advance(
        self,
        request: AdmittedRequest,
        reservation: ByteReservation,
        reply: Callable[[Response], None],
        steps: _EventSteps,
    ) -> bool:
        """Does the next step of a request; returns whether it was the last one."""
        try:
            try:
                next(steps)
            except StopIteration as end:
                response = self._submit(end.value, request, reservation, reply)
            else:
                return False
        except Exception:  # an error rejects only this request, which the client retries
            log.exception("a request failed")
            response = reject("internal", request.request_id)
        if response is not None:
            reply(self._finalize(request.head, response))
        return True

    def _submit(
        self,
        accepted: AcceptedEvents | Response,
        request: AdmittedRequest,
        reservation: ByteReservation,
        reply: Callable[[Response], None],
    ) -> Response | None:
        """Submits the events of a request; returns the response if there are none."""
        if isinstance(accepted, Response):
            return accepted
        if not accepted.entries:  # redaction dropped all events
            return accepted.response
        if not reservation.grow_to(accepted.size_bytes):
            return reject("busy", request.request_id)
        self._writer.submit(accepted.submission, partial(self._on_written, request, accepted, reply))
        return None

    def _on_written(
        self,
        request: AdmittedRequest,
        accepted: AcceptedEvents,
        reply: Callable[[Response], None],
        written: WriteResult,
    ) -> None:
        """Responds according to the write result."""
        if written.problem is not None:
            reply(self._finalize(request.head, reject(written.problem, request.request_id)))
            return
        events = self.metrics.events
        events[accepted.source, "accepted"] += len(accepted.entries) - accepted.malformed_count
        if accepted.malformed_count:
            events[accepted.source, "kept"] += accepted.malformed_count
        reply(self._finalize(request.head, accepted.response))

    def rejection(self, code: str, head: RequestHead | None) -> Response:
        """Returns the rejection of a request that the front rejects. Without a head it has no CORS headers."""
        return self._finalize(head, reject(code, self._new_id()))

    def _finalize(self, head: RequestHead | None, response: Response) -> Response:
        """Counts the response in the metrics and adds CORS headers."""
        self.metrics.requests[response.status, response.code] += 1
        if head is not None:
            response = self._handler.with_cors(head, response)
        if self.state is not ServerState.RUNNING and not response.closes_connection:
            return Response(response.status, response.body, [*response.headers, CLOSE_HEADER], response.code)
        return response

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
                return self._client_settings(head.path[len(_SETTINGS_PATH) : -len("/settings")], request_id)
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

    def _client_settings(self, key: str, request_id: str) -> Response:
        """Returns the settings that analytics.js requests before it sends: the endpoint, without other integrations."""
        host = self._handler.spec.listen.public_host
        if host is None:  # the Host header is the client's, and proxies may cache what it says
            return reject("path", request_id)
        if self._handler.keys.find_key(key) is None:
            return reject("bad_key", request_id)
        content = {
            "integrations": {"Segment.io": {"apiKey": key, "apiHost": f"{host}/v1", "unbundledIntegrations": []}},
            "plan": {"track": {"__default": {"enabled": True, "integrations": {}}}},
            "remotePlugins": [],
        }
        return Response(200, orjson.dumps(content), [JSON_CONTENT_TYPE])
