"""A listening collector, and clients that send bytes to it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from collector.admission import Bounds
from collector.app import CollectorApp
from collector.submissions import Entry, OnWritten
from deltaworks.specs.collector import LimitsSpec, ListenSpec
from tests.unit.collector.http_harness import (
    KEY,
    ListeningFront,
    MemoryWriter,
    app_of,
    collector_spec,
    listening,
)

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
    """A listening collector."""

    def __init__(self, writer: MemoryWriter, app: CollectorApp, server: ListeningFront) -> None:
        self.writer = writer
        self.app = app
        self.server = server

    def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", self.server.port))
        return connection

    def ask(self, *pieces: bytes, pause: float = 0.0) -> list[tuple[int, dict[str, str], object]]:
        """All answers of a connection that sends the pieces and then no more."""
        with self.connect() as connection:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            connection.shutdown(socket.SHUT_WR)
            return answers(connection)

    def codes(self, sent: bytes) -> list[tuple[int, str]]:
        """Status and error code of all answers until the collector closes; the client keeps its end open."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(sent)
            return [(status, content_of(content).get("code", "")) for status, _, content in answers(connection)]


def content_of(content: object) -> dict[str, Any]:
    assert isinstance(content, dict)
    return content


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
def opened(
    writer: MemoryWriter | None = None,
    *,
    limits: Mapping[str, Any] | None = None,
    bounds: Bounds | None = None,
    trusted_hops: int = 0,
    **source: Any,
) -> Iterator[CollectorServer]:
    writer = writer or MemoryWriter()
    spec = collector_spec(origins=[ORIGIN], **source)
    spec = spec.model_copy(
        update={"limits": LimitsSpec.model_validate(limits or {}), "listen": ListenSpec(trusted_hops=trusted_hops)}
    )
    app = app_of(spec, writer, bounds=bounds)
    with listening(app, limits=spec.limits, bounds=bounds, trusted_hops=trusted_hops) as server:
        yield CollectorServer(writer, app, server)
