"""Connections over real sockets: a request in any chunks is answered once, in order and identically."""

from __future__ import annotations

import re
import select
import socket
import time

import pytest

from collector.admission import Bounds
from collector.app import ServerState
from collector.connections import KEEP_ALIVE_SECONDS
from collector.responses import encode_response, reject, success
from collector.submissions import OnWritten, WriteResult
from tests.unit.collector.connection_harness import (
    ORIGIN,
    CollectorServer,
    DelayedWriter,
    answers,
    content_of,
    opened,
    request,
)
from tests.waiting import eventually

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
    with opened() as at_once, opened() as in_chunks:
        one, other = at_once.ask(sent), in_chunks.ask(*(sent[at : at + 1] for at in range(len(sent))), pause=0.0002)
        assert [plain(text) for text in at_once.writer.texts] == [plain(text) for text in in_chunks.writer.texts]

    def alike(answer: tuple[int, dict[str, str], object]) -> tuple[int, dict[str, str], object]:
        status, headers, content = answer
        return status, headers, {name: value for name, value in content_of(content).items() if name != "request_id"}

    assert [alike(answer) for answer in one] == [alike(answer) for answer in other]
    assert len(one) == 1


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
    door.server.call(lambda: done(WriteResult(1)))


def test_no_response_is_sent_before_the_events_are_durable_or_after_a_disconnect() -> None:
    late = DelayedWriter()
    with opened(late) as door:
        with door.connect() as connection:
            connection.sendall(request(b"{}"))
            eventually(lambda: len(late.waiting) == 1, "the request waits")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        call_in_loop(door, late.waiting.pop())
        assert door.app.metrics.requests[200, ""] == 1, "it is counted all the same"
        assert door.server.front.in_flight.in_use == 0
        eventually(lambda: not door.server.front.connections, "the connection is gone")


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
        door.server.reaps = False
        now, front = time.monotonic(), door.server.front

        def reap(seconds: float) -> int:
            front.clock = lambda: now + seconds
            return int(door.server.call(front.reap))

        for connection in (answered, waits):
            connection.sendall(request(b"{}"))
        eventually(lambda: len(late.waiting) == 2 and len(front.connections) == 3, "two requests wait")
        assert reap(9) == 0
        call_in_loop(door, late.waiting.pop(0))
        assert answers(answered, 1)[0][0] == 200 if readable(answered) else answers(waits, 1)[0][0] == 200
        assert reap(11) == 1, "the one that never sent a head is ended"
        assert quiet.recv(1) == b""
        assert reap(KEEP_ALIVE_SECONDS + 20) == 1, "and the one that was answered long ago, not the one that waits"
        assert reap(Bounds().answer_seconds + 20) == 1, "and in the end the one whose answer does not come"


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
