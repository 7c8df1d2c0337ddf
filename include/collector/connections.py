"""The HTTP/1.1 front: connections, bounds on what clients send, and the reaper of connections without progress.

llhttp parses. The front decides what a message may cost before its key is known: the size of its head, its headers,
its framing, the requests ahead of their responses, and the bytes of its body as they arrive. Headers are frozen with
the head, so trailers change nothing. A request is answered once, after its complete body, or rejected earlier; then
the connection ends after its response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import unquote

import httptools

from collector.admission import Bounds, ByteReservation, InFlightBytes, client_address
from collector.request_handler import AdmittedRequest, RequestHead
from collector.responses import Response, encode_response
from deltaworks.specs.collector import LimitsSpec

log = logging.getLogger(__name__)
#: Longer than the timeout of load balancers, which would otherwise send a request to a connection that is being closed.
KEEP_ALIVE_SECONDS: Final = 75
#: Data is passed to the parser in pieces, so that a head is checked before megabytes are parsed.
_PIECE_BYTES: Final = 16 << 10
#: Undelivered bytes of responses from which a connection answers no further request.
_MAX_UNSENT_BYTES: Final = 64 << 10
_LOG_SECONDS: Final = 60.0
#: Connections above the limit that may read the response that there are too many.
_SPARE: Final = 64
#: Headers of an upgrade, which is ignored: the request is answered as HTTP/1.1.
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings", b"connection"})
_CLOSE_TOKEN = re.compile(rb"(?:^|,)[ \t]*close[ \t]*(?:,|$)", re.IGNORECASE)


class Application(Protocol):
    """What the front passes requests to."""

    def begin(self, head: RequestHead) -> AdmittedRequest | Response:
        """Returns the admitted request, whose body is read; otherwise its response."""

    def complete(
        self, request: AdmittedRequest, body: bytes, reservation: ByteReservation, reply: Callable[[Response], None]
    ) -> None:
        """Handles a complete body. Calls `reply` once, immediately or when its events are durable."""

    def rejection(self, code: str, head: RequestHead | None) -> Response:
        """Returns the rejection of a request."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request from its head to its response; `response` is set if it is known before the body is complete.

    Attributes:
        is_cut: it is answered before its end, so its client may still be sending.
    """

    head: RequestHead | None
    keep_alive: bool
    started_at: float
    admitted: AdmittedRequest | None = None
    response: Response | None = None
    reservation: ByteReservation | None = None
    body: bytes | bytearray = b""
    received_bytes: int = 0
    declared_bytes: int | None = None
    waits_for_continue: bool = False
    is_cut: bool = False

    def release(self) -> None:
        """Releases the bytes of its body."""
        self.body = b""
        if self.reservation is not None:
            self.reservation.release()


class _StopParsing(Exception):
    """Raised in the parser's callbacks to end the parsing of a connection."""


class Front:
    """All connections of a collector, and their bounds. Used by the event loop's thread only."""

    def __init__(
        self,
        app: Application,
        limits: LimitsSpec,
        *,
        bounds: Bounds | None = None,
        trusted_hops: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.limits = limits
        self.bounds = bounds or Bounds()
        self.trusted_hops = trusted_hops
        self.clock = clock
        self.max_connections = limits.connections
        self.in_flight = InFlightBytes(limits.in_flight_bytes)
        self.connections: set[Connection] = set()
        #: Connections without a request, the longest idle first.
        self.idle: dict[Connection, None] = {}
        self._logged_at = -_LOG_SECONDS
        self._unlogged = 0

    def connect(self) -> Connection:
        """Returns the protocol of a new connection."""
        return Connection(self)

    def make_room(self) -> bool:
        """Closes the longest idle connection if there are too many; returns False if none is idle."""
        if len(self.connections) <= self.max_connections:
            return True
        longest_idle = next(iter(self.idle), None)
        if longest_idle is None:
            return False
        longest_idle.end()
        return True

    def reap(self) -> int:
        """Ends connections without progress; returns their number. Called about once per second."""
        now = self.clock()
        return sum([connection.end_without_progress(now) for connection in list(self.connections)])

    def log_malformed(self) -> None:
        """Logs at most one line per minute, as senders choose the number of malformed requests."""
        self._unlogged += 1
        now = self.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            log.warning("%d malformed HTTP requests were rejected", self._unlogged)
            self._logged_at, self._unlogged = now, 0

    async def close(self, *, timeout_seconds: float) -> None:
        """Ends all connections: idle ones immediately, others after their response or at the timeout."""
        for connection in list(self.connections):
            connection.shut_down()
        end = self.clock() + timeout_seconds
        while self.connections and self.clock() < end:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)


class Connection(asyncio.Protocol):
    """One connection. Requests are answered one at a time, in their order."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._parser: Any = None
        self._transport: Any = None
        self._peer = ""
        self._request: _Request | None = None
        self._answering: _Request | None = None
        self._queue: deque[_Request] = deque()
        #: No further request is read; the connection ends after the last response.
        self._stops = False
        self._closing_since: float | None = None
        #: Whether the client has ended its sending.
        self._has_ended = False
        self._is_lost = self._is_reading_paused = self._is_write_paused = False
        self._is_new = True
        self._rest: asyncio.TimerHandle | None = None
        self._last_data_at = self._wrote_at = front.clock()
        self._head_since: float | None = None
        self._discarded_bytes = self._requests_in_read = 0
        self._begin_head()

    def _begin_head(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = self._head_bytes = self._framing_bytes = 0

    # --- the transport's callbacks

    def connection_made(self, transport: Any) -> None:
        """Accepts the connection. If there are too many, closes the longest idle one, or responds 503."""
        front = self._front
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
        self._parser = httptools.HttpRequestParser(self)
        front.connections.add(self)
        if front.make_room():
            front.idle[self] = None
        else:
            self._refuse("busy")

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases the bytes of requests that were not passed on."""
        self._is_lost = self._stops = True
        self._front.connections.discard(self)
        self._front.idle.pop(self, None)
        for request in (self._request, *self._queue):
            if request is not None:
                request.release()
        self._request = None
        self._queue.clear()
        if self._rest is not None:
            self._rest.cancel()
        self._parser = None  # refers to this connection

    def eof_received(self) -> bool:
        """Keeps the connection open for outstanding responses if the client has only ended its sending."""
        self._stops = self._has_ended = True
        if self._request is not None:
            self._request.release()
            self._request = None
        return self._closing_since is None and (self._answering is not None or bool(self._queue))

    def pause_writing(self) -> None:
        """Answers no further request until the client has read its responses."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Continues with the next request."""
        self._is_write_paused = False
        self._continue()

    def data_received(self, data: bytes) -> None:
        """Parses data. Ends the connection if it exceeds a bound or is not HTTP/1.1."""
        self._last_data_at = now = self._front.clock()
        self._requests_in_read = 0
        if self._stops:
            self._discard(len(data))
            return
        if self._request is None and self._head_since is None:
            self._head_since = now
            self._front.idle.pop(self, None)
        if len(data) <= _PIECE_BYTES:
            self._feed(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), _PIECE_BYTES):
                if not self._feed(view[start : start + _PIECE_BYTES]):
                    break
        self._after_read()

    # --- parsing

    def _feed(self, data: bytes | memoryview) -> bool:
        """Parses data; returns whether more is parsed."""
        had_begun, request = bool(self._url), self._request
        received_bytes = 0 if request is None else request.received_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return not self._stops and self._feed_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._stops:
                self._refuse("request")
            return False
        if had_begun and self._url and request is self._request:
            received_bytes = 0 if request is None else request.received_bytes - received_bytes
            self._framing_bytes += len(data) - received_bytes
            self._check_framing()
        return not self._stops

    def _check_framing(self) -> None:
        """Rejects a head without end, and chunks whose framing exceeds their content by far."""
        bounds, request = self._front.bounds, self._request
        allowed_bytes = bounds.head_bytes
        if request is not None:
            allowed_bytes += bounds.framing_factor * request.received_bytes
        if self._framing_bytes > allowed_bytes:
            self._refuse("headers" if request is None else "request")

    def _feed_without_upgrade(self, rest: bytes | memoryview) -> bool:
        """Parses a request again without its upgrade, since the parser ends at the head of one with an upgrade."""
        method = self._parser.get_method()
        if method == b"CONNECT" or self._parser.get_http_version() != "1.1":
            self._refuse("method" if method == b"CONNECT" else "request")
            return False
        headers = [(name, value) for name, value in self._headers.items() if name not in _UPGRADE_HEADERS]
        if _CLOSE_TOKEN.search(self._headers.get(b"connection", b"")):
            headers.append((b"connection", b"close"))
        lines = [b"%s %s HTTP/1.1" % (method, self._url), *(b"%s: %s" % header for header in headers), b"", b""]
        self._parser = httptools.HttpRequestParser(self)
        return self._feed(b"\r\n".join(lines)) and (not rest or self._feed(rest))

    def on_message_begin(self) -> None:
        """Starts a request."""
        if self._stops:
            raise _StopParsing
        self._begin_head()
        if self._head_since is None:
            self._head_since = self._last_data_at
            self._front.idle.pop(self, None)

    def on_url(self, url: bytes) -> None:
        """Collects the request target."""
        self._url += url
        if len(self._url) > self._front.bounds.head_bytes:
            self._refuse_in_parser("headers")

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Collects a header; values of repeated headers are joined. Trailers are ignored."""
        if self._request is not None:
            return
        name, value = name.lower(), value or b""
        headers, bounds = self._headers, self._front.bounds
        headers[name] = value if name not in headers else headers[name] + b", " + value
        self._header_count += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._header_count > bounds.headers or self._head_bytes + len(self._url) > bounds.head_bytes:
            self._refuse_in_parser("headers")

    def on_headers_complete(self) -> None:
        """Admits or rejects the request by its head."""
        parser, headers, front = self._parser, self._headers, self._front
        if parser.should_upgrade():
            return
        version = parser.get_http_version()
        encoding = headers.get(b"transfer-encoding")
        if version not in ("1.1", "1.0") or (
            encoding is not None and (version, encoding.lower()) != ("1.1", b"chunked")
        ):
            self._refuse_in_parser("request")
        head = self._request_head(parser.get_method().decode("ascii"))
        keep_alive = version == "1.1" and parser.should_keep_alive()
        request = _Request(head, keep_alive=keep_alive, started_at=self._last_data_at)
        length = headers.get(b"content-length")
        request.declared_bytes = None if length is None else int(length)
        request.waits_for_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        has_body = encoding is not None or bool(request.declared_bytes)
        self._request, self._head_since, self._is_new = request, None, False
        begun = front.app.begin(head)
        if isinstance(begun, Response):
            request.response = begun
            is_awaited = request.waits_for_continue or begun.closes_connection
            if has_body and (is_awaited or (request.declared_bytes or 0) > front.limits.max_body_bytes):
                self._refuse_in_parser("")
            return
        request.admitted = begun
        if (request.declared_bytes or 0) > self._max_bytes(request):
            self._refuse_in_parser("too_large")
        peer, hops = self._peer, front.trusted_hops
        if hops:
            peer = client_address(peer, headers, trusted_hops=hops)
        request.reservation = ByteReservation(front.in_flight, peer, begun.key is not None)

    def _request_head(self, method: str) -> RequestHead:
        if self._url == b"*":
            return RequestHead(method, "*", b"", self._headers, self._peer)
        try:
            url = httptools.parse_url(self._url)
        except httptools.HttpParserError:
            self._refuse_in_parser("request")
        path = (url.path or b"/").decode("ascii", "replace")
        path = unquote(path) if "%" in path else path
        return RequestHead(method, path, url.query or b"", self._headers, self._peer)

    def _max_bytes(self, request: _Request) -> int:
        limits, bounds = self._front.limits, self._front.bounds
        has_key = request.admitted is None or request.admitted.key is not None
        return limits.max_body_bytes if has_key else min(bounds.keyless_bytes, limits.max_body_bytes)

    def on_body(self, data: bytes) -> None:
        """Counts and collects a part of the body. The body of a rejected request is counted only."""
        request = self._request
        if request is None:
            return
        request.received_bytes += len(data)
        if request.response is not None:
            if request.received_bytes > self._front.limits.max_body_bytes:
                self._refuse_in_parser("")
            return
        if request.received_bytes > self._max_bytes(request):
            self._refuse_in_parser("too_large")
        if request.reservation is not None and not request.reservation.grow_to(request.received_bytes):
            request.response = self._front.app.rejection("busy", request.head)
            request.release()
            return
        if not request.body:
            request.body = data
        elif isinstance(request.body, bytearray):
            request.body += data
        else:
            request.body = bytearray(request.body + data)

    def on_message_complete(self) -> None:
        """Answers the request, or queues it if an earlier one is unanswered."""
        request = self._request
        if request is None:
            return  # an upgrade, which is parsed again
        if request.declared_bytes is not None and request.declared_bytes != request.received_bytes:
            self._refuse_in_parser("request")
        self._request, self._url = None, b""
        self._requests_in_read += 1
        if max(len(self._queue), self._requests_in_read - 1) > self._front.bounds.requests_ahead:
            request.release()
            self._stops = True
            self._continue()
            raise _StopParsing
        if self._answering is None and not self._queue and not self._is_write_paused:
            self._answer(request)
        else:
            self._queue.append(request)

    # --- rejections

    def _refuse_in_parser(self, code: str) -> NoReturn:
        """Rejects the current request and ends the parsing."""
        self._refuse(code)
        raise _StopParsing

    def _refuse(self, code: str) -> None:
        """Rejects the current request, or data that is none, before its end; the connection ends after its response.

        Args:
            code: row of the rejection table; empty if the response is known.
        """
        if code == "request":
            self._front.log_malformed()
        self._stops = True
        request, self._request = self._request, None
        if request is None:
            request = _Request(None, keep_alive=False, started_at=self._front.clock())
        request.release()
        if code or request.response is None:
            request.response = self._front.app.rejection(code or "internal", request.head)
        request.keep_alive, request.is_cut = False, True
        self._head_since = None
        self._queue.append(request)
        self._continue()

    # --- responses

    def _answer(self, request: _Request) -> None:
        self._answering = request
        if request.response is not None:
            self._respond(request, request.response)
        elif request.admitted is None or request.reservation is None:
            raise TypeError("a request without a response is admitted")
        else:
            body, request.body = bytes(request.body), b""
            request.started_at = max(self._last_data_at, self._wrote_at)
            self._front.app.complete(request.admitted, body, request.reservation, partial(self._respond, request))

    def _respond(self, request: _Request, response: Response) -> None:
        """Writes a response, unless the client disconnected."""
        request.release()
        if self._answering is not request:
            return
        self._answering = None
        if self._is_lost or self._closing_since is not None:
            return
        keeps = request.keep_alive and not response.closes_connection and not (self._stops and not self._queue)
        has_body = request.head is None or request.head.method != "HEAD"
        data = response.prepared_bytes if keeps and has_body else b""
        self._transport.write(data or encode_response(response, closes_connection=not keeps, has_body=has_body))
        self._wrote_at = self._front.clock()
        if not keeps:
            self._close(lingers=request.is_cut or self._stops)
            return
        if 400 <= response.status < 500:
            self._take_rest()
        self._continue()

    def _continue(self) -> None:
        """Answers the next request, or reads further ones."""
        if self._answering is not None or self._is_write_paused or self._closing_since is not None or self._is_lost:
            return
        if self._queue:
            self._answer(self._queue.popleft())
        elif self._stops:
            self._close(lingers=True)
        elif self._is_reading_paused:
            if self._rest is None:
                self._resume_reading()
        elif self._request is None and self._head_since is None:
            self._front.idle[self] = None
        else:
            self._ask_for_body()

    def _after_read(self) -> None:
        """Pauses reading while requests wait for responses; otherwise asks for an awaited body."""
        if self._closing_since is not None or self._is_lost or self._stops:
            return
        is_ahead = self._request is not None or self._head_since is not None or self._queue
        if self._rest is not None or ((self._answering is not None or self._is_write_paused) and is_ahead):
            self._pause_reading()
            return
        if self._request is not None:
            self._ask_for_body()

    def _ask_for_body(self) -> None:
        request = self._request
        if request is not None and request.waits_for_continue and self._answering is None and not self._queue:
            request.waits_for_continue = False
            if not request.received_bytes:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        now = self._front.clock()
        if self._request is not None:  # its time did not run while it was not read
            self._request.started_at = now
        if self._head_since is not None:
            self._head_since = now
        self._transport.resume_reading()
        self._ask_for_body()
        if self._request is None and self._head_since is None:
            self._front.idle[self] = None

    def _take_rest(self) -> None:
        """Does not read for a moment, so that rejecting a client in a loop costs little."""
        if self._front.bounds.rest_seconds > 0 and self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(self._front.bounds.rest_seconds, self._end_rest)
            self._pause_reading()

    def _end_rest(self) -> None:
        self._rest = None
        self._continue()

    # --- the end

    def _close(self, *, lingers: bool) -> None:
        """Closes the connection after its responses are sent.

        Args:
            lingers: the client may still be sending, and would not read its response if the connection was reset. So
                its data is discarded for a moment.
        """
        self._closing_since = self._last_data_at = self._front.clock()
        self._stops = True
        self._front.idle.pop(self, None)
        if lingers and not self._has_ended and len(self._front.connections) <= self._front.max_connections + _SPARE:
            with contextlib.suppress(OSError, RuntimeError):
                self._transport.write_eof()
                if self._is_reading_paused:
                    self._is_reading_paused = False
                    self._transport.resume_reading()
                return
        self._transport.close()

    def _discard(self, size_bytes: int) -> None:
        self._discarded_bytes += size_bytes
        if self._closing_since is not None and self._discarded_bytes > 4 * self._front.limits.max_body_bytes:
            self.abort()

    def end(self) -> None:
        """Closes the connection if it has no request; otherwise aborts it."""
        if self._answering is None and not self._queue and not self._transport.get_write_buffer_size():
            self._close(lingers=False)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the connection without sending what is left."""
        self._stops = True
        self._front.idle.pop(self, None)
        self._transport.abort()

    def shut_down(self) -> None:
        """Ends the connection after its last response."""
        if self._answering is None and not self._queue and self._request is None and self._head_since is None:
            self._close(lingers=False)

    def end_without_progress(self, now: float) -> bool:
        """Ends the connection if it made no progress in time; returns whether it did."""
        limits, bounds = self._front.limits, self._front.bounds
        is_unread = self._transport.get_write_buffer_size() > 0
        if is_unread and now - self._wrote_at > limits.body_seconds:
            is_late = True  # the client does not read
        elif self._closing_since is not None:
            is_late = not is_unread and now - self._last_data_at > bounds.closing_seconds
            is_late = is_late or now - self._closing_since > 2 * limits.body_seconds
        elif self._answering is not None:
            is_late = now - self._answering.started_at > bounds.answer_seconds
        else:
            return self._rest is None and not self._is_write_paused and self._end_incomplete(now)
        if is_late:
            self.abort()
        return is_late

    def _end_incomplete(self, now: float) -> bool:
        """Rejects a request whose body is late, and closes a connection without a request or with half a head."""
        limits, bounds, request = self._front.limits, self._front.bounds, self._request
        if request is not None:
            seconds = now - request.started_at
            least_bytes = bounds.bytes_per_second * seconds if seconds > bounds.grace_seconds else 0
            if seconds <= limits.body_seconds and request.received_bytes >= least_bytes:
                return False
            self._refuse("slow_body")
            return True
        since, allowed_seconds = self._wrote_at, float(KEEP_ALIVE_SECONDS)
        if self._head_since is not None:
            since, allowed_seconds = self._head_since, limits.body_seconds
        elif self._is_new:
            allowed_seconds = limits.body_seconds
        if now - since <= allowed_seconds:
            return False
        self.end()
        return True
