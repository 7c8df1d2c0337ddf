"""Connections of the HTTP server: requests that are there at once cost no task, and those who say nothing are closed.

Most requests of SDKs arrive head and body in one piece. Such a request is handed to the application in the call that
reads it, and answered in the call that says its events are durable: no task, one write. Everything else, such as a body
in pieces, a second request before the first is answered, a client that does not read, goes uvicorn's way.

uvicorn's own limit of connections answers without `Retry-After`, it waits for ever for the head of a first request, and
it sets a timer for every answer to end a connection that stays open behind it.
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

#: Above that of balancers, which else send a request into a connection that is just being closed.
KEEP_ALIVE_SECONDS = 75
#: Takes a request whose body is there, and calls back with its answer, once; False where it does not.
CompleteRequestHandler = Callable[[RequestHead, bytes, Callable[[Response], None]], bool]


def decline_request(_head: RequestHead, _body: bytes, _reply: Callable[[Response], None]) -> bool:
    """Every request goes uvicorn's way."""
    return False


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is turned away where there are too many.

    Attributes:
        quiet_since: when it was opened or answered last, on the monotonic clock, while no request is under way.
    """

    max_connections: ClassVar[int] = 10_000
    handle_complete: ClassVar[CompleteRequestHandler] = staticmethod(decline_request)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or answer 503 to it unread."""
        self.idle_since = time.monotonic()
        self._is_parsing = False
        self._pending_request: tuple[RequestResponseCycle, Any] | None = None
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(encode_response(reject("busy", ""), closes_connection=True))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Read what has come, and begin with a request whose body is still to come."""
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        self._start_pending()

    def on_message_complete(self) -> None:
        """Take the request at once where nothing of it was waited for."""
        super().on_message_complete()
        if self._pending_request is None or self.flow.write_paused:
            return
        cycle, scope = self._pending_request[0], self.scope
        peer = self.client[0] if self.client else ""
        head = RequestHead(scope["method"], scope["path"], scope["query_string"], dict(self.headers), peer)
        if type(self).handle_complete(head, bytes(cycle.body), partial(self._respond, cycle)):
            self._pending_request = None

    def on_response_complete(self) -> None:
        """Go on with what was sent meanwhile. `end_quiet` ends the connection where nothing comes: no timer does."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self.idle_since = time.monotonic()

    def is_idle_since(self, moment: float) -> bool:
        """Whether no request is under way, nor was at any time since then."""
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and self.idle_since < moment

    @property
    def is_new(self) -> bool:
        """Whether it has never sent the whole head of a request."""
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
        """Write an answer as one piece, unless whoever waits for it is gone."""
        if cycle.disconnected or cycle.response_complete:
            return
        data = response.prepared_bytes if cycle.keep_alive else b""
        cycle.response_started = cycle.response_complete = True
        self.transport.write(data or encode_response(response, closes_connection=not cycle.keep_alive))
        if not cycle.keep_alive or response.closes_connection:
            self.transport.close()
        cycle.on_response()
        cycle.on_response = _noop  # it holds the connection, which holds the cycle


def _noop() -> None:
    pass


def close_idle(connections: Iterable[Any], *, now: float, head_seconds: float) -> int:
    """Close connections on which nothing is under way; how many that were.

    Those that have never sent the head of a request have `head_seconds`, all others `KEEP_ALIVE_SECONDS`.
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
