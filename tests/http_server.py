"""A local HTTP server whose answers are a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class HttpRequest:
    """A request as the server received it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body, parsed as JSON."""
        return json.loads(self.body)


#: Status and content; content that is not bytes is sent as JSON. Headers may follow.
HttpAnswer = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]


@contextmanager
def http_server(answer: Callable[[HttpRequest], HttpAnswer]) -> Iterator[str]:
    """Serves within the block, on a free port; yields the address. A client that has left gets no answer."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content, *more = answer(HttpRequest(self.command, self.path, dict(self.headers), body))
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            with suppress(OSError):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **(more[0] if more else {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = handle_request

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
