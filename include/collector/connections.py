"""Connections of the HTTP server: counted, and closed where they send no request.

uvicorn's own limit answers without `Retry-After`, and it waits for ever for the head of a first request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from collector.verdicts import refusal


class CountedProtocol(HttpToolsProtocol):
    """A connection that is turned away where there are too many."""

    most_connections: ClassVar[int] = 10_000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or answer 503 to it unread."""
        self.opened_at = time.monotonic()
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            answer = refusal("busy", "")
            lines = [b"HTTP/1.1 503 Service Unavailable", *(b"%s: %s" % header for header in answer.headers)]
            lines += [b"content-length: %d" % len(answer.body), b"connection: close", b"", answer.body]
            transport.write(b"\r\n".join(lines))
            transport.close()

    def is_silent_since(self, moment: float) -> bool:
        """Whether it was opened before then and has never sent the whole head of a request."""
        cycle: object = self.cycle
        return cycle is None and self.opened_at < moment


def end_silent(connections: Iterable[Any], *, before: float) -> int:
    """Close the connections that were opened before then and have sent no request; how many that were."""
    silent = [item for item in connections if isinstance(item, CountedProtocol) and item.is_silent_since(before)]
    for connection in silent:
        connection.transport.close()
    return len(silent)
