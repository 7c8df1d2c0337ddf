"""Connections of the HTTP server: handles requests that arrive in one read without a task, and closes idle connections.

Most SDK requests arrive with head and body in one read. Such a request is passed to the application in the same call
and answered with one write when its events are durable. uvicorn handles all other requests: bodies in chunks, pipelined
requests, clients that do not read.

Replaces uvicorn's connection limit, which responds without `Retry-After`, and its timeouts: it waits without limit for
the head of a first request, and sets a timer for every keep-alive response.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from collector.request_handler import RequestHead
from collector.responses import Response, encode_response, reject

#: Longer than the timeout of load balancers, which would otherwise send a request to a connection that is being closed.
KEEP_ALIVE_SECONDS = 75
#: Handles a request with a complete body and calls back with its response once; False if it does not handle it.
CompleteRequestHandler = Callable[[RequestHead, bytes, Callable[[Response], None]], bool]


def decline_request(_head: RequestHead, _body: bytes, _reply: Callable[[Response], None]) -> bool:
    """Returns False, so uvicorn handles every request."""
    return False


class LimitedProtocol(HttpToolsProtocol):
    """A connection of a server with a maximum number of connections.

    Attributes:
        idle_since: monotonic time of opening or of the last response; valid while no request is in progress.
    """

    max_connections: ClassVar[int] = 10_000
    handle_complete: ClassVar[CompleteRequestHandler] = staticmethod(decline_request)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection, or responds 503 without reading it."""
        self.idle_since = time.monotonic()
        self._is_parsing = False
        self._pending_request: tuple[RequestResponseCycle, Any] | None = None
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(encode_response(reject("busy", ""), closes_connection=True))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Parses received data. Passes a request with an incomplete body to uvicorn."""
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        self._start_pending()

    def on_message_complete(self) -> None:
        """Handles a request directly if it arrived completely in one read."""
        super().on_message_complete()
        if self._pending_request is None or self.flow.write_paused:
            return
        cycle, scope = self._pending_request[0], self.scope
        peer = self.client[0] if self.client else ""
        head = RequestHead(scope["method"], scope["path"], scope["query_string"], dict(self.headers), peer)
        if type(self).handle_complete(head, bytes(cycle.body), partial(self._respond, cycle)):
            self._pending_request = None

    def on_response_complete(self) -> None:
        """Continues with pipelined data. Sets no keep-alive timer, because `close_idle` closes idle connections."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self.idle_since = time.monotonic()

    def is_idle_since(self, moment: float) -> bool:
        """Returns whether the connection has been idle since a monotonic time."""
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and self.idle_since < moment

    @property
    def is_new(self) -> bool:
        """Returns whether the connection has never received a complete request head."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_parsing:
            self._pending_request = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _start_pending(self) -> None:
        pending, self._pending_request = self._pending_request, None
        if pending is not None:
            super()._start_asgi_task(*pending)

    def _respond(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Writes a complete response at once, unless the client disconnected."""
        if cycle.disconnected or cycle.response_complete:
            return
        data = response.prepared_bytes if cycle.keep_alive else b""
        cycle.response_started = cycle.response_complete = True
        self.transport.write(data or encode_response(response, closes_connection=not cycle.keep_alive))
        if not cycle.keep_alive or response.closes_connection:
            self.transport.close()
        cycle.on_response()
        cycle.on_response = _noop  # breaks a reference cycle between the connection and the request cycle


def _noop() -> None:
    pass


def close_idle(connections: Iterable[Any], *, now: float, head_seconds: float) -> int:
    """Closes idle connections; returns their number.

    A new connection may wait `head_seconds` for its first request head, other connections `KEEP_ALIVE_SECONDS` for the
    next request.
    """
    idle = [
        item
        for item in connections
        if isinstance(item, LimitedProtocol)
        and item.is_idle_since(now - (head_seconds if item.is_new else KEEP_ALIVE_SECONDS))
    ]
    for connection in idle:
        connection.transport.close()
    return len(idle)
