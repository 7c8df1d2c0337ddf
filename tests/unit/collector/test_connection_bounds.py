"""Hostile connections over real sockets: each bound holds, and without it the connection costs what it must not."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import json
import logging
import socket
import time
from functools import partial
from typing import Any

import pytest
import zstandard

from collector.admission import Bounds
from collector.submissions import WriteResult
from tests.unit.collector.connection_harness import (
    CollectorServer,
    DelayedWriter,
    answers,
    content_of,
    opened,
    request,
)
from tests.unit.collector.http_harness import KEY, MemoryWriter
from tests.waiting import eventually

UNBOUNDED = Bounds(
    head_bytes=1 << 40,
    headers=1 << 40,
    framing_factor=1 << 40,
    requests_ahead=1 << 40,
    keyless_bytes=1 << 40,
    keyless_events=1 << 40,
    growth_factor=1 << 40,
    gzip_members=1 << 40,
    bytes_per_second=0,
    answer_seconds=1e9,
    rest_seconds=0,
)
#: Bounds on time that a test can await.
QUICK = Bounds(grace_seconds=0.3, closing_seconds=0.3, answer_seconds=1, rest_seconds=0)
AUTH = "Authorization: Basic " + base64.b64encode(f"{KEY}:".encode()).decode()
HEAD = f"POST /v1/track HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n"


def without(*names: str) -> Bounds:
    """The quick bounds, some of them off."""
    return dataclasses.replace(QUICK, **{name: getattr(UNBOUNDED, name) for name in names})


def events_of(writer: MemoryWriter) -> list[Any]:
    return [event.get("n") for event in writer.events]


# --- a 200 is for events that came and are durable

UPGRADES = {
    "curl --http2": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "java": "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    "Upgrade: h2c\r\n",
    "websocket": "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAA\r\n",
    "tls": "Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    "unknown, repeated": "Upgrade: a\r\nUpgrade: b\r\nConnection: upgrade\r\nConnection: keep-alive\r\n",
    "without connection": "Upgrade: h2c\r\n",
}


@pytest.mark.parametrize("kind", UPGRADES)
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("step", [1 << 20, 1])
def test_an_upgrade_is_ignored_and_its_body_is_read(kind: str, framing: str, step: int) -> None:
    body = b'{"n":1}'
    sent = HEAD.encode() + UPGRADES[kind].encode()
    sent += b"Content-Length: 7\r\n\r\n" + body if framing == "length" else b"Transfer-Encoding: chunked\r\n\r\n"
    sent += b"" if framing == "length" else b"3\r\n" + body[:3] + b"\r\n4\r\n" + body[3:] + b"\r\n0\r\n\r\n"
    sent += request(b'{"n":2}')
    with opened(bounds=QUICK) as door:
        got = door.ask(*(sent[at : at + step] for at in range(0, len(sent), step)))
        assert [(status, content_of(content).get("accepted")) for status, _, content in got] == [(200, 1)] * 2
        assert events_of(door.writer) == [1, 2]


def test_an_upgrade_that_also_closes_closes_and_one_without_its_body_gets_no_200() -> None:
    upgrade = HEAD + "Connection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 7\r\n\r\n"
    with opened(bounds=QUICK) as door:
        ((status, headers, _),) = door.ask(upgrade.encode() + b'{"n":1}')
        assert (status, headers["connection"]) == (200, "close")
        assert door.ask(upgrade.encode()) == []
        assert door.ask(upgrade.encode() + b'{"n"') == []
        assert events_of(door.writer) == [1]


UNFINISHED = {
    "no body": b"Content-Length: 9\r\n\r\n",
    "half a body": b'Content-Length: 9\r\n\r\n{"n"',
    "a complete event, shorter than declared": b'Content-Length: 9\r\n\r\n{"n":1}',
    "chunks without an end": b'Transfer-Encoding: chunked\r\n\r\n7\r\n{"n":1}\r\n',
    "half a chunk": b'Transfer-Encoding: chunked\r\n\r\n9\r\n{"n":1}',
    "an end without its trailers' end": b'Transfer-Encoding: chunked\r\n\r\n7\r\n{"n":1}\r\n0\r\n',
    "an awaited body": b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "a declared length beyond any": b"Content-Length: 4194304\r\n\r\n",
}


@pytest.mark.parametrize("kind", UNFINISHED)
@pytest.mark.parametrize("ends", [True, False])
def test_a_body_that_does_not_come_never_gets_a_200(kind: str, ends: bool) -> None:
    sent = HEAD.encode() + UNFINISHED[kind]
    with opened(limits={"body_seconds": 0.5}, bounds=QUICK) as door:
        if ends:
            assert door.ask(sent) == []
        else:
            assert door.codes(sent) == [(408, "slow_body")]
        assert door.writer.texts == []
        eventually(lambda: not door.server.front.connections, "the connection ends")
        assert door.server.front.in_flight.in_use == 0


def test_each_of_several_requests_has_its_own_head_and_body() -> None:
    """A request that is read while an earlier one waits is not mixed with it."""
    late = DelayedWriter()
    get, other = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"PUT /v1/track HTTP/1.1\r\nHost: x\r\n"
    other += b'Content-Length: 7\r\n\r\n{"n":0}'
    keyless = b'POST /v1/track HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{"n":9}'
    with opened(late, bounds=QUICK) as door, door.connect() as connection:
        connection.sendall(get + request(b'{"n":1}') + other + request(b'{"n":2}') + keyless + get)
        eventually(lambda: len(late.waiting) == 1, "the first event waits")
        door.server.call(lambda: late.waiting.pop()(WriteResult(1)))
        eventually(lambda: len(late.waiting) == 1, "the second event waits")
        door.server.call(lambda: late.waiting.pop()(WriteResult(2)))
        assert [status for status, _, _ in answers(connection, 6)] == [200, 200, 405, 200, 401, 200]
        assert events_of(late) == [1, 2]


def test_connections_with_a_get_before_a_keyless_post_are_closed_when_idle() -> None:
    packet = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/track HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    with opened(limits={"connections": 20}, bounds=QUICK) as door, contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(door.connect()).sendall(packet)
        assert [status for status, _, _ in door.ask(request(b'{"n":1}'))] == [200]
        assert len(door.server.front.connections) <= 20


# --- smuggling

SMUGGLED = {
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "the same length twice": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a list of lengths": b"Content-Length: 2,2\r\n\r\n{}",
    "a signed length": b"Content-Length: +2\r\n\r\n{}",
    "a hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "an empty length": b"Content-Length:\r\n\r\n{}",
    "space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding around chunks": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in a coding": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n{}",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a continued header": b"X: a\r\n Content-Length: 2\r\n\r\n{}",
    "a continued coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"X: a\nContent-Length: 2\r\n\r\n{}",
    "a bare carriage return": b"X: a\rContent-Length: 2\r\n\r\n{}",
    "a zero byte": b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a name": b": a\r\n\r\n",
    "a header without a colon": b"X\r\n\r\n",
    "a negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a chunk with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size that overflows": b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a chunk without a line end": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
    "a chunk line with a line feed": b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    "a line feed in an extension": b"Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("kind", SMUGGLED)
def test_ambiguous_framing_is_rejected_and_what_follows_is_not_read(kind: str) -> None:
    with opened(bounds=QUICK) as door:
        (rejected,) = door.codes(HEAD.encode() + SMUGGLED[kind] + request(b'{"n":1}'))
        assert rejected == (400, "request")
        assert door.writer.texts == []


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n" + request(b'{"n":1}'),
        HEAD.replace("HTTP/1.1", "HTTP/1.0").encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD.replace("HTTP/1.1", "HTTP/0.9").encode() + b"Content-Length: 2\r\n\r\n{}",
        HEAD.replace("HTTP/1.1", "HTTP/2.0").encode() + b"Content-Length: 2\r\n\r\n{}",
        HEAD.replace("HTTP/1.1", "HTTP/1.0").encode()
        + UPGRADES["curl --http2"].encode()
        + b"Content-Length: 2\r\n\r\n{}",
        b"POST /v1/track\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"POST /\x80 HTTP/1.1\r\n\r\n",
        b"POST http://[::1 HTTP/1.1\r\n\r\n",
        b"\0" * 100,
    ],
)
def test_what_is_not_http_1_1_is_rejected_and_closed(sent: bytes) -> None:
    with opened(bounds=QUICK) as door:
        ((status, code),) = door.codes(sent)
        assert (status, code) in ((400, "request"), (405, "method"))
        assert door.writer.texts == []


def test_an_absolute_target_is_its_path_and_old_clients_are_answered() -> None:
    absolute = request(b'{"n":1}').replace(b"/v1/track", b"http://other.example/v1/track")
    old = request(b'{"n":2}', "Connection: keep-alive", version="1.0")
    with opened(bounds=QUICK) as door:
        assert [status for status, _, _ in door.ask(absolute)] == [200]
        ((status, headers, _),) = door.ask(old + request(b'{"n":3}'))
        assert (status, headers["connection"], events_of(door.writer)) == (200, "close", [1, 2])


# --- heads


def head_of(size: int) -> bytes:
    return HEAD.encode() + b"X: " + b"a" * (size - len(HEAD) - 30) + b"\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "sent",
    [
        head_of(34 << 10),
        head_of(4 << 20),
        HEAD.encode() + b"".join(b"X-%d: a\r\n" % number for number in range(101)) + b"\r\n",
        HEAD.encode() + b"X: a\r\n" * 101 + b"\r\n",
        HEAD.encode() + b"X:\r\n" * 101 + b"\r\n",
        b"POST /" + b"a" * (40 << 10),
        b"POST /v1/track?" + b"a" * (4 << 20),
        HEAD.encode() + b"a" * (60 << 10),
        HEAD.encode() + b"X: " + b"a" * (60 << 10),
        HEAD.encode() + b"X-Y: a\r\n" * (4 << 10),
    ],
    ids=range(10),
)
def test_a_head_is_bounded_in_bytes_and_headers(sent: bytes) -> None:
    with opened(bounds=QUICK) as door:
        assert door.codes(sent) == [(431, "headers")]
        eventually(lambda: not door.server.front.connections, "the connection ends")


def test_a_head_within_the_bounds_is_accepted_and_a_larger_one_without_them() -> None:
    for sent in (head_of(31 << 10), HEAD.encode() + b"X: a\r\n" * 90 + b"Content-Length: 2\r\n\r\n{}"):
        with opened(bounds=QUICK) as door:
            assert [status for status, _, _ in door.ask(sent)] == [200]
    with opened(bounds=without("head_bytes", "headers")) as door:
        assert [status for status, _, _ in door.ask(head_of(1 << 20))] == [200]
        assert [
            status for status, _, _ in door.ask(HEAD.encode() + b"X: a\r\n" * 500 + b"Content-Length: 2\r\n\r\n{}")
        ] == [200]


def slowly(door: CollectorServer, first: bytes, piece: bytes, *, pause: float = 0.02, seconds: float = 5.0) -> float:
    """Sends a piece again and again; returns the seconds until the collector closed the connection."""
    began = time.monotonic()
    with door.connect() as connection:
        connection.sendall(first)
        with contextlib.suppress(OSError):
            while time.monotonic() - began < seconds:
                connection.sendall(piece)
                time.sleep(pause)
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while connection.recv(65_536):
                        pass
                    break
                connection.setblocking(True)
    return time.monotonic() - began


SLOW: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "empty lines": (b"", b"\r\n"),
    "a method": (b"", b"P"),
    "a target": (b"POST /", b"a"),
    "a header name": (HEAD.encode(), b"a"),
    "a header value": (HEAD.encode() + b"X: ", b"a"),
    "headers": (HEAD.encode(), b"X: a\r\n"),
    "a body": (HEAD.encode() + b"Content-Length: 4194304\r\n\r\n", b" "),
    "a body behind an expectation": (HEAD.encode() + b"Expect: 100-continue\r\nContent-Length: 4194304\r\n\r\n", b" "),
    "a body of an upgrade": (HEAD.encode() + UPGRADES["java"].encode() + b"Content-Length: 4194304\r\n\r\n", b" "),
    "a body without a key": (b"POST /v1/track HTTP/1.1\r\nContent-Length: 40000\r\n\r\n", b" "),
    "the body of a rejected request": (b"PUT /v1/track HTTP/1.1\r\nContent-Length: 40000\r\n\r\n", b" "),
    "chunks": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk extension": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n2;", b"a"),
    "a chunk size": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: a\r\n"),
    "data behind a rejection": (b"GET / HTTP/1.1\r\nX:\0", b"a"),
    "empty lines behind a response": (request(b"{}"), b"\r\n"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_no_connection_lives_from_a_few_bytes_at_a_time(kind: str) -> None:
    first, piece = SLOW[kind]
    with opened(limits={"body_seconds": 1}, bounds=QUICK) as door:
        assert slowly(door, first, piece) < 3.5


def test_without_the_reaper_slow_connections_live() -> None:
    with opened(limits={"body_seconds": 0.5}, bounds=QUICK) as door:
        door.server.reaps = False
        assert slowly(door, *SLOW["a body"], seconds=2) >= 2
        assert slowly(door, *SLOW["a header value"], seconds=2) >= 2


def test_a_body_has_a_least_rate_and_a_slow_honest_one_arrives() -> None:
    head = HEAD.encode() + b"Content-Length: 100000\r\n\r\n"
    with opened(limits={"body_seconds": 3}, bounds=QUICK) as door:
        assert slowly(door, head, b" " * 5) < 2
        with door.connect() as connection:
            connection.sendall(head)
            for _ in range(50):
                connection.sendall(b" " * 2000)
                time.sleep(0.02)
            assert answers(connection, 1)[0][0] == 200
    with opened(limits={"body_seconds": 3}, bounds=without("bytes_per_second")) as door:
        assert slowly(door, head, b" " * 5) > 2


# --- framing

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "an extension": (b"2;", b"a" * 4096),
    "extensions": (b"", b"1;" + b"a" * 100 + b"\r\n \r\n"),
    "a chunk size": (b"", b"0" * 4096),
    "a trailer": (b"2\r\n{}\r\n0\r\nX: ", b"a" * 4096),
    "trailers": (b"2\r\n{}\r\n0\r\n", b"X: a\r\n" * 500),
    "empty trailers": (b"2\r\n{}\r\n0\r\n", b"X:\r\n" * 500),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_chunk_framing_without_end_is_rejected(kind: str) -> None:
    first, piece = ENDLESS[kind]
    head = HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    with opened(bounds=QUICK) as door:
        assert door.codes(head + first + piece * 2000) == [(400, "request")]
        assert door.writer.texts == []
    if kind in ("an extension", "a trailer", "trailers"):
        with opened(limits={"body_seconds": 1}, bounds=without("framing_factor", "head_bytes")) as door:
            assert door.codes(head + first + piece * 200) == [(408, "slow_body")]


def test_tiny_chunks_and_extensions_of_honest_clients_are_read() -> None:
    body = json.dumps({"n": "x" * 20_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nX: trailer\r\n\r\n"
    with opened(bounds=QUICK) as door:
        assert [
            status for status, _, _ in door.ask(HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        ] == [200]


def test_trailers_change_nothing_and_repeated_headers_are_joined() -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n7\r\n" + b'{"n":1}\r\n0\r\n'
    keyless = b"POST /v1/track HTTP/1.1\r\nHost: x\r\n"
    trailers = f"{AUTH}\r\nX-Forwarded-For: 198.51.100.9\r\nContent-Encoding: zstd\r\nOrigin: http://x\r\n\r\n".encode()
    with opened(bounds=QUICK, trusted_hops=1) as door:
        assert door.codes(keyless + b"Connection: close\r\n" + chunked + trailers) == [(401, "bad_key")]
        assert door.writer.texts == []
        forwarded = b"X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-For: 203.0.113.200\r\n"
        assert [status for status, _, _ in door.ask(HEAD.encode() + forwarded + chunked + trailers)] == [200]
        assert door.writer.events[0]["_collector"]["ip"] == "203.0.113.0"
        twice = HEAD.encode() + AUTH.encode() + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        assert door.codes(twice) == [(401, "bad_key")]
    joined = (
        HEAD.encode()
        + b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    with opened(bounds=QUICK) as door:
        assert door.codes(joined) == [(415, "encoding")]


# --- requests ahead, and clients that do not read


def test_requests_ahead_of_their_responses_are_bounded() -> None:
    late = DelayedWriter()
    with opened(late, bounds=QUICK) as door, door.connect() as connection:
        connection.sendall(b"".join(request(b'{"n":%d}' % number) for number in range(100)))
        for _ in range(9):
            eventually(lambda: bool(late.waiting), "a request waits")
            door.server.call(lambda: late.waiting.pop()(WriteResult(1)))
        got = answers(connection)
        assert [status for status, _, _ in got] == [200] * 9
        assert got[-1][1]["connection"] == "close"
        assert events_of(late) == list(range(9)), "nothing behind them is accepted"
    with opened(bounds=without("requests_ahead")) as door:
        assert len(door.ask(b"".join(request(b"{}") for _ in range(100)))) == 100


def never_reading(door: CollectorServer, sent: bytes, *, seconds: float) -> int:
    """Sends without reading; returns the bytes that could be sent until the collector closed or stopped reading."""
    count = 0
    with door.connect(receive_bytes=4096) as connection:
        connection.settimeout(0.5)
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                try:
                    count += connection.send(sent)
                except TimeoutError:
                    continue
    return count


@pytest.mark.parametrize(
    "sent",
    [
        request(b"{}"),
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        request(b"[" + b"0," * 2000 + b"0]", path="/v1/events"),
    ],
)
def test_a_client_that_never_reads_is_closed_and_costs_no_memory(sent: bytes) -> None:
    with opened(limits={"body_seconds": 1}, bounds=without("requests_ahead")) as door:
        never_reading(door, sent * 8, seconds=20)
        eventually(lambda: not door.server.front.connections, "the connection ends")


def test_the_verdicts_of_a_response_are_bounded() -> None:
    with opened(bounds=QUICK) as door:
        ((status, headers, content),) = door.ask(request(b"[" + b"0," * 19_000 + b"0]", path="/v1/events"))
        assert (status, content_of(content)["kept"], len(content_of(content)["verdicts"])) == (200, 19_001, 1000)
        assert int(headers["content-length"]) < 40_000


# --- bytes in flight


def holding(
    door: CollectorServer, stack: contextlib.ExitStack, count: int, head: str, body: bytes
) -> list[socket.socket]:
    """Connections that declare 4 MiB, and send a part."""
    held = [stack.enter_context(door.connect()) for _ in range(count)]
    for connection in held:
        connection.sendall(f"{head}Content-Length: {4 << 20}\r\n\r\n".encode() + body)
    return held


def test_declared_bytes_that_do_not_come_lock_nobody_out() -> None:
    with opened(bounds=Bounds()) as door, contextlib.ExitStack() as stack:
        holding(door, stack, 100, HEAD, b"")
        holding(door, stack, 100, "POST /v1/track HTTP/1.1\r\n", b"")
        assert [status for status, _, _ in door.ask(request(b'{"n":1}'))] == [200]
        assert door.server.front.in_flight.in_use == 0


def test_large_bodies_leave_a_share_to_small_requests_with_a_key() -> None:
    with opened(limits={"in_flight_bytes": 8 << 20}, bounds=Bounds()) as door, contextlib.ExitStack() as stack:
        held = holding(door, stack, 6, HEAD, b" " * (3 << 20))
        eventually(lambda: door.app.metrics.requests[503, "busy"] >= 4, "most are too many")
        assert door.server.front.in_flight.in_use <= 4 << 20, "half of all bytes per peer"
        assert [status for status, _, _ in door.ask(request(b'{"n":1}'))] == [200]
        for connection in held:
            connection.close()
        eventually(lambda: door.server.front.in_flight.in_use == 0, "their bytes are released")
        assert [status for status, _, _ in door.ask(request(b"[" + b" " * (3 << 20) + b"]", path="/v1/events"))] == [
            200
        ]


def test_peers_behind_a_proxy_have_shares_of_their_own() -> None:
    limits = {"in_flight_bytes": 8 << 20}
    with opened(limits=limits, bounds=Bounds(), trusted_hops=1) as door, contextlib.ExitStack() as stack:
        holding(door, stack, 1, HEAD + "X-Forwarded-For: 203.0.113.7\r\n", b" " * (3 << 20))
        eventually(lambda: door.server.front.in_flight.in_use > 2 << 20, "a peer holds bytes")
        large = b"[" + b" " * (2 << 20) + b"]"
        same, other = "X-Forwarded-For: 203.0.113.7", "X-Forwarded-For: 203.0.113.8"
        assert door.codes(request(large, same, "Connection: close", path="/v1/events"))[0][0] == 503
        assert door.codes(request(large, other, "Connection: close", path="/v1/events"))[0][0] == 200


def test_requests_without_a_key_have_a_share_and_small_bodies() -> None:
    keyless = "POST /v1/track HTTP/1.1\r\nHost: x\r\n"
    with opened(limits={"in_flight_bytes": 1 << 20}, bounds=Bounds()) as door, contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(door.connect())
            connection.sendall(f"{keyless}Content-Length: 60000\r\n\r\n".encode() + b" " * 50_000)
        eventually(
            lambda: door.app.metrics.requests[503, "busy"] >= 0 and door.server.front.in_flight.in_use > 0, "held"
        )
        assert door.server.front.in_flight.in_use <= 1 << 17
        assert [status for status, _, _ in door.ask(request(b" " * 60_000 + b'{"n":1}'))] == [200]


def test_a_request_without_a_key_in_its_head_is_small_inflated_too() -> None:
    def keyless(body: bytes, *more: str, path: str = "/v1/batch") -> bytes:
        return request(body, *more, path=path).replace(AUTH.encode(), b"X: y")

    def batch(events: int, size: int) -> bytes:
        return json.dumps({"writeKey": KEY, "batch": [{"n": "x" * size}] * events}).encode()

    with opened(bounds=QUICK) as door:
        assert [status for status, _, _ in door.ask(keyless(batch(1000, 1)))] == [200]
        for sent in (
            keyless(batch(1001, 1)),
            keyless(batch(10, 7000)),
            keyless(gzip.compress(batch(10, 7000)), "Content-Encoding: gzip"),
            keyless(zstandard.compress(batch(10, 7000)), "Content-Encoding: zstd"),
            keyless(gzip.compress(b"[" + b"{]," * 20_000), "Content-Encoding: gzip", path="/v1/events"),
            keyless(b"", f"Content-Length: {65 << 10}").replace(b"Content-Length: 0\r\n", b""),
        ):
            assert door.codes(sent) == [(413, "too_large")]
        chunked = b"POST /v1/track HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n" + b" " * 65_537
        assert door.codes(chunked) == [(413, "too_large")]
    with opened(bounds=without("keyless_bytes", "keyless_events")) as door:
        assert [status for status, _, _ in door.ask(keyless(batch(1001, 700)))] == [200]


def test_a_body_over_the_limit_is_answered_at_once_and_counted_instead_of_kept() -> None:
    head = HEAD.encode() + b"Content-Length: 50000000\r\n\r\n"
    chunked = HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n2FAF080\r\n"
    with opened(bounds=QUICK) as door:
        for first in (head, chunked):
            with door.connect() as connection:
                connection.sendall(first)
                connection.sendall(b" " * (6 << 20))
                assert [(status, headers["connection"]) for status, headers, _ in answers(connection, 1)] == [
                    (413, "close")
                ]
                with contextlib.suppress(OSError):
                    connection.sendall(b" " * (2 << 20))
                assert door.server.front.in_flight.in_use == 0
        with door.connect() as connection:
            connection.sendall(head)
            assert sent_until_closed(connection, 100 << 20) < 80 << 20, "it is not read without end"


def sent_until_closed(connection: socket.socket, size: int) -> int:
    """Sends spaces; returns how many until the other end closed."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < size:
            connection.sendall(b" " * (1 << 20))
            sent += 1 << 20
    return sent


def test_a_rejected_request_costs_no_bytes_and_a_client_that_expects_is_not_asked_for_its_body() -> None:
    body = b" " * (1 << 20)
    rejected = request(body, key="another")
    with opened(bounds=QUICK) as door:
        with door.connect() as connection:
            connection.sendall(rejected[:-100])
            time.sleep(0.1)
            assert door.server.front.in_flight.in_use == 0
            connection.sendall(rejected[-100:] + request(b'{"n":1}'))
            assert [status for status, _, _ in answers(connection, 2)] == [401, 200]
        expects = request(b"", "Expect: 100-continue", key="another").replace(
            b"Content-Length: 0", b"Content-Length: 9"
        )
        assert door.codes(expects) == [(401, "bad_key")]


def test_an_expected_body_is_asked_for_once() -> None:
    head = HEAD.encode() + b"Expect: 100-continue\r\nContent-Length: 7\r\n\r\n"
    with opened(bounds=QUICK) as door, door.connect() as connection:
        connection.sendall(head)
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"n":1}')
        assert answers(connection, 1)[0][0] == 200


# --- idle connections, and the log


def test_the_longest_idle_connection_makes_room_and_one_with_a_request_does_not() -> None:
    late = DelayedWriter()
    with (
        opened(late, limits={"connections": 3}, bounds=Bounds(rest_seconds=0)) as door,
        contextlib.ExitStack() as stack,
    ):
        working, oldest = stack.enter_context(door.connect()), stack.enter_context(door.connect())
        working.sendall(request(b"{}"))
        eventually(lambda: len(late.waiting) == 1, "a request waits")
        oldest.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert answers(oldest, 1)[0][0] == 200
        newer = stack.enter_context(door.connect())
        eventually(lambda: len(door.server.front.connections) == 3, "there are as many as may be")
        newest = stack.enter_context(door.connect())
        assert oldest.recv(1) == b"", "it was idle longest"
        newest.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        newer.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert answers(newest, 1)[0][0] == answers(newer, 1)[0][0] == 200
        door.server.call(lambda: late.waiting.pop()(WriteResult(1)))
        assert answers(working, 1)[0][0] == 200


def test_a_connection_too_many_is_answered_503_where_none_is_idle() -> None:
    late = DelayedWriter()
    with opened(late, limits={"connections": 2}, bounds=QUICK) as door, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(door.connect()).sendall(request(b"{}"))
        eventually(lambda: len(late.waiting) == 2, "two requests wait")
        assert door.codes(b"GET /health HTTP/1.1\r\n\r\n") == [(503, "busy")]
        for done in late.waiting:
            door.server.call(partial(done, WriteResult(1)))


def test_malformed_requests_write_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), opened(bounds=QUICK) as door:
        for _ in range(20):
            assert door.codes(b"\0\r\n\r\n") == [(400, "request")]
        assert door.app.metrics.requests[400, "request"] == 20
    assert len(caplog.records) == 1


def test_a_client_that_is_rejected_in_a_loop_rests() -> None:
    def seconds(bounds: Bounds) -> float:
        with opened(bounds=bounds) as door, door.connect() as connection:
            began = time.monotonic()
            for _ in range(10):
                connection.sendall(request(b"{}", key="another"))
                assert answers(connection, 1)[0][0] == 401
            return time.monotonic() - began

    assert seconds(dataclasses.replace(QUICK, rest_seconds=0.1)) > 0.8


@pytest.mark.parametrize("members", [1_001, 200_000])
def test_a_body_of_empty_gzip_members_is_rejected(members: int) -> None:
    body = gzip.compress(b"") * members
    with opened(bounds=QUICK) as door:
        assert door.codes(request(body, "Content-Encoding: gzip")) == [(413, "too_large")]


def test_what_a_request_becomes_is_bounded() -> None:
    context = {"a": "x" * 10_000}
    bomb = gzip.compress(json.dumps({"context": context, "batch": [{}] * 20_000}).encode())
    with opened(bounds=QUICK) as door:
        assert door.codes(request(bomb, "Content-Encoding: gzip", path="/v1/batch")) == [(413, "too_large")]
        assert door.writer.texts == []
        assert door.server.front.in_flight.in_use == 0
    with opened(limits={"in_flight_bytes": 1 << 40}, bounds=without("growth_factor")) as door:
        small = json.dumps({"context": context, "batch": [{}] * 4_000}).encode()
        assert door.codes(request(small, "Connection: close", path="/v1/batch"))[0][0] == 200
        assert sum(map(len, door.writer.texts)) > 40_000_000


def test_a_request_of_many_events_is_read_in_steps_between_those_of_others() -> None:
    heavy = request(json.dumps({"batch": [{"n": 1}] * 20_000}).encode(), path="/v1/batch")
    with opened(bounds=Bounds()) as door, contextlib.ExitStack() as stack:
        held = [stack.enter_context(door.connect()) for _ in range(5)]
        quick = stack.enter_context(door.connect())
        for connection in held:
            connection.sendall(heavy)
        waits, done = list[float](), 0
        while not done:
            began = time.monotonic()
            quick.sendall(request(b'{"n":2}'))
            assert answers(quick, 1)[0][0] == 200
            waits.append(time.monotonic() - began)
            done = len(door.writer.texts) > 99_000
        assert [answers(connection, 1)[0][0] for connection in held] == [200] * 5
    assert len(waits) > 20, "they are answered meanwhile"
