"""Connections over real sockets: a request in any chunks is answered once, in order and identically."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collector.app import ServerState
from collector.connections import KEEP_ALIVE_SECONDS, LimitedProtocol, close_idle
from collector.responses import encode_response, reject, success
from collector.submissions import Entry, OnWritten, WriteResult
from tests.unit.collector.http_harness import KEY, MemoryWriter, app_of, collector_spec, listening
from tests.waiting import eventually

ORIGIN = "https://play.example.org"


def request(body: bytes, *more: str, version: str = "1.1", path: str = "/v1/track", key: str = KEY) -> bytes:
    user = base64.b64encode(f"{key}:".encode()).decode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Authorization: Basic {user}", *more]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


class DelayedWriter(MemoryWriter):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[OnWritten] = []

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        super().submit(entries, lambda written: None)
        self.waiting.append(on_written)


class CollectorServer:
    """A listening collector, and how many requests it took without a task."""

    def __init__(self, writer: MemoryWriter, *, whole: bool = True) -> None:
        self.writer = writer
        self.app = app_of(collector_spec(origins=[ORIGIN]), writer)
        self.whole = 0
        self._takes = whole
        door = self
        self.connections: list[LimitedProtocol] = []
        self.port = 0

        class Protocol(LimitedProtocol):
            handle_complete = staticmethod(self._take)

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                door.connections.append(self)

        self.protocol = Protocol

    def _take(self, *arguments: object) -> bool:
        taken = self._takes and self.app.handle_complete(*arguments)  # type: ignore[arg-type]
        self.whole += taken
        return taken

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(30)
        return connection

    def ask(self, *pieces: bytes, pause: float = 0.0) -> list[tuple[int, dict[str, str], object]]:
        """All answers of a connection that sends the pieces and then no more."""
        with self.connect() as connection:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            connection.shutdown(socket.SHUT_WR)
            return answers(connection)


def answers(connection: socket.socket, count: int | None = None) -> list[tuple[int, dict[str, str], object]]:
    """So many answers; all of them until the other end closes by default."""
    data, found = b"", list[tuple[int, dict[str, str], object]]()
    while count is None or len(found) < count:
        head, mark, rest = data.partition(b"\r\n\r\n")
        if mark and b" 100 " in head.partition(b"\r\n")[0]:  # left out where the body is there already
            data = rest
            continue
        length = re.search(rb"content-length: (\d+)", head)
        if mark and length and len(rest) >= int(length[1]):
            lines = head.decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:])
            body, data = rest[: int(length[1])], rest[int(length[1]) :]
            found.append((int(lines[0].split()[1]), headers, json.loads(body)))
        elif piece := connection.recv(65_536):
            data += piece
        else:
            break
    return found


@contextmanager
def opened(writer: MemoryWriter | None = None, *, whole: bool = True) -> Iterator[CollectorServer]:
    door = CollectorServer(writer or MemoryWriter(), whole=whole)
    with listening(door.app, http=door.protocol) as url:
        door.port = int(url.rpartition(":")[2])
        yield door


REQUESTS = [
    request(b'{"messageId":"a"}'),
    request(b'{"batch":[{"messageId":"a"},3]}', path="/v1/batch"),
    request(b"{}", f"Origin: {ORIGIN}"),
    request(b"{}", "Origin: https://evil.example.org"),
    request(b"{}", key="another"),
    request(b"{}", "Content-Encoding: br"),
    request(b"{}", "Connection: close"),
    request(b"{}", "Expect: 100-continue"),
    request(b"{}", version="1.0"),
    request(b"{}", path="/v1/nothing"),
    request(b""),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_a_request_in_one_read_gets_the_same_response_as_one_in_chunks(number: int) -> None:
    sent = REQUESTS[number]
    with opened() as at_once, opened(whole=False) as by_task:
        one, other = at_once.ask(sent), by_task.ask(sent)
        assert (at_once.whole, by_task.whole) == (1, 0)
        assert [plain(text) for text in at_once.writer.texts] == [plain(text) for text in by_task.writer.texts]

    def alike(answer: tuple[int, dict[str, str], object]) -> tuple[int, dict[str, str], object]:
        status, headers, content = answer
        assert isinstance(content, dict)
        writer = {name: value for name, value in headers.items() if name not in ("date", "server")}
        return status, writer, {name: value for name, value in content.items() if name != "request_id"}

    assert [alike(answer) for answer in one] == [alike(answer) for answer in other]


def plain(text: bytes) -> bytes:
    """A text without what differs from request to request."""
    return re.sub(rb'"(id|request|received_at|time)":"[^"]*"', b"", text)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_requests_in_any_chunks_are_answered_once_in_order(size: int) -> None:
    stream = b"".join(request(f'{{"messageId":"m{number}"}}'.encode()) for number in range(3))
    with opened() as door:
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        got = door.ask(*pieces, pause=0.0005)
        assert [status for status, _, _ in got] == [200] * 3
        assert [event["messageId"] for event in door.writer.events] == ["m0", "m1", "m2"]


def test_pipelined_requests_are_answered_one_at_a_time_in_order() -> None:
    late = DelayedWriter()
    with opened(late) as door, door.connect() as connection:
        bodies = [b'{"messageId":"a"}', b"[", b'{"messageId":"c"}']
        connection.sendall(b"".join(map(request, bodies)))
        for _ in bodies:
            eventually(lambda: bool(late.waiting), "a request waits")
            assert len(late.waiting) == 1, "the next one begins behind the answer"
            call_in_loop(door, late.waiting.pop())
            ((status, _, content),) = answers(connection, 1)
            assert (status, isinstance(content, dict) and content["success"]) == (200, True)
        assert len(late.texts) == 3


def call_in_loop(door: CollectorServer, done: OnWritten) -> None:
    """Answer as the spool's thread has it: in the event loop's."""
    connection = door.connections[0]
    connection.loop.call_soon_threadsafe(done, WriteResult(1))


def test_no_response_is_sent_before_the_events_are_durable_or_after_a_disconnect() -> None:
    late = DelayedWriter()
    with opened(late) as door:
        with door.connect() as connection:
            connection.sendall(request(b"{}"))
            eventually(lambda: len(late.waiting) == 1, "the request waits")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            protocol = door.connections[0]
        eventually(lambda: protocol.cycle.disconnected, "the client is gone")
        protocol.loop.call_soon_threadsafe(late.waiting.pop(), WriteResult(1))
        eventually(lambda: door.app.metrics.requests[200, ""] == 1, "it is counted all the same")


def test_a_draining_process_closes_the_connection_after_its_response() -> None:
    with opened() as door:
        door.app.state = ServerState.DRAINING
        ((status, headers, _),) = door.ask(request(b"{}"))
        assert (status, headers["connection"]) == (200, "close")
        door.app.state = ServerState.CLOSED
        ((status, headers, content),) = door.ask(request(b"{}"))
        assert (status, headers["connection"]) == (503, "close")
        assert isinstance(content, dict)
        assert content["code"] == "draining"


def test_an_idle_connection_is_closed_and_one_waiting_for_its_response_is_not() -> None:
    late = DelayedWriter()
    with opened(late) as door, door.connect() as quiet, door.connect() as answered, door.connect() as waits:
        for connection in (answered, waits):
            connection.sendall(request(b"{}"))
        eventually(lambda: len(late.waiting) == 2 and len(door.connections) == 3, "two requests wait")
        now = time.monotonic()
        assert close_idle(door.connections, now=now + 9, head_seconds=10) == 0
        call_in_loop(door, late.waiting.pop(0))
        ((status, _, _),) = answers(answered, 1) if readable(answered) else answers(waits, 1)
        assert status == 200
        loop, open_now = door.connections[0].loop, door.connections[0].connections
        ended: list[int] = []
        loop.call_soon_threadsafe(lambda: ended.append(close_idle(list(open_now), now=now + 11, head_seconds=10)))
        eventually(lambda: ended == [1], "the one that never sent a head is ended")
        assert quiet.recv(1) == b""
        later = now + KEEP_ALIVE_SECONDS + 60
        loop.call_soon_threadsafe(lambda: ended.append(close_idle(list(open_now), now=later, head_seconds=10)))
        eventually(lambda: ended == [1, 1], "and the one that was answered long ago, not the one that still waits")


def readable(connection: socket.socket) -> bool:
    """Whether something comes there soon."""
    return bool(select.select([connection], [], [], 0.5)[0])


def test_a_prepared_response_equals_the_encoded_one() -> None:
    answer = success(3, {})
    assert answer.prepared_bytes == encode_response(answer._replace(prepared_bytes=b""))
    assert answer.prepared_bytes.endswith(b"\r\n\r\n" + answer.body)
    assert encode_response(answer, closes_connection=True).count(b"connection: close") == 1
    closing = reject("slow_body", "r")
    assert encode_response(closing, closes_connection=True) == encode_response(closing)
