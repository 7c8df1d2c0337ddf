"""An OpenLineage backend over HTTP that stores posted events, or never responds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Backend:
    """What was posted, with the headers it came with."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers = threading.Event()
        self.answers.set()

    def of(self, state: str) -> list[dict[str, Any]]:
        """The events of a state."""
        return [event for event in self.events if event["eventType"] == state]


@contextmanager
def running_backend(*, hangs: bool = False) -> Iterator[Backend]:
    """A backend on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            backend.answers.wait()
            backend.headers.append(dict(self.headers))
            backend.events.append(json.loads(body))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    backend = Backend(f"http://127.0.0.1:{server.server_address[1]}")
    if hangs:
        backend.answers.clear()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield backend
    finally:
        backend.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
