"""An HTTP server with traffic weights and injectable faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Director:
    """The weights, all calls that set them, and injected faults."""

    weights: dict[str, float]
    url: str = ""
    moves: list[dict[str, Any]] = field(default_factory=list)
    #: POSTs whose reply is lost; POSTs that fail with a status; GETs without a reply.
    lost_replies: int = 0
    refusals: list[int] = field(default_factory=list)
    silent_reads: int = 0
    #: Delay of a lost reply, longer than the client's timeout.
    reply_seconds: float = 1.0


@contextmanager
def running_director(**weights: float) -> Iterator[Director]:
    """Runs a server on a free local port."""
    director = Director(weights)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if director.silent_reads > 0:
                director.silent_reads -= 1
                self.send_error(503)
                return
            self._answer({"weights": director.weights})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if director.refusals:
                self.send_error(director.refusals.pop(0))
                return
            director.weights = body["weights"]
            director.moves.append({**body, "key": self.headers["Idempotency-Key"]})
            if director.lost_replies > 0:
                director.lost_replies -= 1
                time.sleep(director.reply_seconds)
            self._answer({})

        def _answer(self, content: Any) -> None:
            data = json.dumps(content).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except BrokenPipeError:
                return

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    director.url = f"http://127.0.0.1:{server.server_address[1]}/weights"
    try:
        yield director
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
