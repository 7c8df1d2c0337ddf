"""A proxy in front of an HTTP server that injects failures of networks and servers into selected requests.

The most important fault is the lost reply: the server executed the request, but the client gets no response. A correct
writer then neither loses nor duplicates data. Faults are selected by method and path, for every n-th request or with a
seeded probability, so runs are repeatable.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlparse

from sandbox.servers.fault_responses import drop_entries, error_response, fail_entries, operation_of, truncated_response
from sandbox.servers.server_thread import run_server
from sandbox.stack.ports import HOST

_MAX_HEAD_BYTES = 1 << 20
_STATUSES_WITHOUT_BODY = frozenset({204, 304})
_HTTP_OK = range(200, 300)
_CLOSED = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_UNAVAILABLE = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 90\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>   "
)


class Action(StrEnum):
    """The failure of a selected request."""

    LOSE_REPLY = "lose_reply"  # the server executes the request; the connection is closed without a response
    UNAVAILABLE = "unavailable"  # 503 Slow Down; the server never sees the request
    DELAY = "delay"  # the request is forwarded after a delay
    REFUSE = "refuse"  # an error with the fault's status and code; the server never sees the request
    CUT_SHORT = "cut_short"  # the server executes the request; the connection is closed after half of the response body
    FAIL_ENTRIES = "fail_entries"  # half of a batch request's entries fail; the server sees only the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A rule that selects requests by patterns for method and path (with query).

    It applies to every n-th matching request with `probability`, at most `times` times. `operation` is matched against
    the operation of AWS's JSON protocol, such as ReceiveMessage; it is empty for other requests. `status` and `code`
    are those of the response for `REFUSE`.
    """

    action: Action
    method: str = ".*"
    path: str = ".*"
    every: int = 1
    times: int | None = None
    probability: float = 1.0
    delay_seconds: float = 0.0
    operation: str = ".*"
    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True, slots=True)
class Incident:
    """An injected fault. `status` is the server's response that the client did not get; 0 without a response."""

    action: Action
    method: str
    path: str
    status: int
    operation: str = ""

    @property
    def is_lost_reply(self) -> bool:
        """Returns whether the server executed the request and the client got no response."""
        return self.action is Action.LOSE_REPLY and self.status in _HTTP_OK


@dataclass(slots=True)
class FaultProxy:
    """A running proxy: its address, the rules for the next requests (`faults`), and the injected faults
    (`incidents`)."""

    endpoint: str
    upstream: tuple[str, int]
    faults: Sequence[Fault]
    seed: int = 0
    incidents: list[Incident] = field(default_factory=list)
    _request_counts: dict[Fault, int] = field(default_factory=dict)
    _random: random.Random = field(default_factory=random.Random)
    _serving: set[asyncio.Task[None] | None] = field(default_factory=set)

    def choose(self, method: str, path: str, operation: str = "") -> Fault | None:
        """Returns the fault to inject into the next request; None if there is none. The first matching rule decides."""
        for fault in self.faults:
            if not re.fullmatch(fault.operation, operation):
                continue
            if re.fullmatch(fault.method, method) and re.search(fault.path, path):
                self._request_counts[fault] = self._request_counts.get(fault, 0) + 1
                ordinal, rest = divmod(self._request_counts[fault], fault.every)
                due = rest == 0 and (fault.times is None or ordinal <= fault.times)
                return fault if due and self._random.random() < fault.probability else None
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client connection until client or server closes it."""
        # Holds a reference: after its client is killed, nothing else refers to the task while the server responds.
        task = asyncio.current_task()
        self._serving.add(task)
        server = _UpstreamConnection(*self.upstream)
        try:
            while True:
                head, body = await _read_request(reader, writer)
                answer, goes_on = await self._answer(server, head, body)
                writer.write(answer)
                await writer.drain()
                if not goes_on:
                    if not answer:
                        writer.transport.abort()
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()
            server.close()

    async def _answer(self, server: _UpstreamConnection, head: bytes, body: bytes) -> tuple[bytes, bool]:
        """Returns the response for the client, and whether its connection stays open."""
        method, path = head.split(b" ", 2)[:2]
        fault = self.choose(method.decode(), path.decode(), operation_of(head))
        if fault is None:
            return await server.ask(head, body), True
        if fault.action in (Action.LOSE_REPLY, Action.CUT_SHORT):
            answer = await server.ask(head, body)
            self._record(fault, head, _status(answer))
            return (truncated_response(answer) if fault.action is Action.CUT_SHORT else b""), False
        self._record(fault, head, 0)
        match fault.action:
            case Action.UNAVAILABLE:
                return _without_head_body(method, _UNAVAILABLE), True
            case Action.REFUSE:
                return _without_head_body(method, error_response(head, status=fault.status, code=fault.code)), True
            case Action.FAIL_ENTRIES:
                head, left, failed = drop_entries(head, body)
                return fail_entries(await server.ask(head, left) if left else None, failed), True
        await asyncio.sleep(fault.delay_seconds)
        return await server.ask(head, body), True

    def _record(self, fault: Fault, head: bytes, status: int) -> None:
        method, path = head.split(b" ", 2)[:2]
        self.incidents.append(Incident(fault.action, method.decode(), path.decode(), status, operation_of(head)))


class _UpstreamConnection:
    """A connection to the server, opened for the first request."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: bytes, body: bytes) -> bytes:
        """Forwards a request and returns the complete response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=_MAX_HEAD_BYTES)
        reader, writer = self._streams
        writer.write(head + body)
        answer = await _read_answer(reader, head.split(b" ", 1)[0])
        if _CLOSED.search(answer.partition(b"\r\n\r\n")[0]):
            # The client's connection stays open, so its next request needs a new upstream connection.
            self.close()
        return answer

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if re.search(rb"\r\nexpect: *100-continue", head, re.IGNORECASE):
        # Answered here, because the proxy forwards only complete requests.
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = re.sub(rb"\r\nexpect: *100-continue", b"", head, flags=re.IGNORECASE)
    return head, await _read_body(reader, head)


def _without_head_body(method: bytes, answer: bytes) -> bytes:
    """Removes the body from a response to HEAD; clients would read it as the start of the next response."""
    end = answer.index(b"\r\n\r\n") + 4
    return answer[:end] if method == b"HEAD" else answer


async def _read_answer(reader: asyncio.StreamReader, method: bytes) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if method == b"HEAD" or _status(head) in _STATUSES_WITHOUT_BODY:
        return head
    return head + await _read_body(reader, head)


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if length:
        return await reader.readexactly(int(length[1]))
    if not re.search(rb"\r\ntransfer-encoding: *chunked", head, re.IGNORECASE):
        return b""
    body = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
        body += size + chunk
        if chunk == b"\r\n":
            return body


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@contextmanager
def running_fault_proxy(upstream: str, *, faults: Sequence[Fault] = (), seed: int = 0) -> Iterator[FaultProxy]:
    """Runs a proxy in front of `upstream` (http://host:port) in a thread during the block.

    `faults` of the yielded proxy can be replaced at any time and apply from the next request on.
    """
    target = urlparse(upstream)
    proxy = FaultProxy("", (target.hostname or HOST, target.port or 80), faults, seed, _random=random.Random(seed))
    with run_server(proxy.serve, name="fault-proxy", max_line_bytes=_MAX_HEAD_BYTES) as port:
        proxy.endpoint = f"http://{HOST}:{port}"
        yield proxy
