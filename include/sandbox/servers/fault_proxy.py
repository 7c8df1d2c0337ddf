"""A proxy before an HTTP server that makes chosen requests fail the way networks and servers do.

The fault that matters most is the lost reply: the server has acted, and the client does not learn it. Whoever
writes must then neither lose nor double what it wrote. Faults are chosen by method and path, every n-th time or
with a seeded probability, so that a run can be repeated.
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
    """What happens to a chosen request."""

    LOSE_REPLY = "lose_reply"  # the server acts, then the connection is cut instead of answered
    UNAVAILABLE = "unavailable"  # 503 Slow Down; the server never sees the request
    DELAY = "delay"  # the request reaches the server late
    REFUSE = "refuse"  # an error with a chosen status and code; the server never sees the request
    CUT_SHORT = "cut_short"  # the server acts; half of its answer's body arrives, then the connection is cut
    FAIL_ENTRIES = "fail_entries"  # half of a batch call's entries fail, and the server never sees those


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule: requests whose method and path (with query) match the patterns, every n-th and by probability, but
    no more than `times` of them.

    `operation` is matched against the operation of a request of AWS' JSON protocol, such as ReceiveMessage; others have
    none. `status` and `code` are those of a refusal.
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
    """A fault that happened. `status` is the server's answer the client never saw, 0 where there was none."""

    action: Action
    method: str
    path: str
    status: int
    operation: str = ""

    @property
    def is_lost_reply(self) -> bool:
        """Whether the server executed the request and the client got no answer."""
        return self.action is Action.LOSE_REPLY and self.status in _HTTP_OK


@dataclass(slots=True)
class FaultProxy:
    """A running proxy: its address, the faults it makes from now on, and those it has made."""

    endpoint: str
    upstream: tuple[str, int]
    faults: Sequence[Fault]
    seed: int = 0
    incidents: list[Incident] = field(default_factory=list)
    _request_counts: dict[Fault, int] = field(default_factory=dict)
    _random: random.Random = field(default_factory=random.Random)
    _serving: set[asyncio.Task[None] | None] = field(default_factory=set)

    def choose(self, method: str, path: str, operation: str = "") -> Fault | None:
        """The fault for the next request, if any; the first matching rule decides."""
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
        """Answer one client's connection until either side ends it."""
        # A client that is killed leaves nobody else to hold the task while the server answers.
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
        """What the client gets, and whether its connection lives on after it."""
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
    """The connection to the server behind, opened when it is first needed."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: bytes, body: bytes) -> bytes:
        """The server's answer, whole."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=_MAX_HEAD_BYTES)
        reader, writer = self._streams
        writer.write(head + body)
        answer = await _read_answer(reader, head.split(b" ", 1)[0])
        if _CLOSED.search(answer.partition(b"\r\n\r\n")[0]):
            # A client that the proxy answers keeps its connection, and sends its next request over it.
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if re.search(rb"\r\nexpect: *100-continue", head, re.IGNORECASE):
        # Answered here: the server gets the request whole, so that its answer is whole too.
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = re.sub(rb"\r\nexpect: *100-continue", b"", head, flags=re.IGNORECASE)
    return head, await _read_body(reader, head)


def _without_head_body(method: bytes, answer: bytes) -> bytes:
    """An answer to HEAD has no body: it would be read as the beginning of the connection's next answer."""
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
    """Run a proxy before `upstream` (http://host:port) in a thread while the block runs.

    `faults` of the yielded proxy can be replaced at any time and counts for the next request.
    """
    target = urlparse(upstream)
    proxy = FaultProxy("", (target.hostname or HOST, target.port or 80), faults, seed, _random=random.Random(seed))
    with run_server(proxy.serve, name="fault-proxy", max_line_bytes=_MAX_HEAD_BYTES) as port:
        proxy.endpoint = f"http://{HOST}:{port}"
        yield proxy
