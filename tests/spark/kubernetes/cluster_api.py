"""A fake Kubernetes API server: stores created objects and records requests by user.

Created pods never run. Watches stay open without events.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class ClusterApi:
    """The server's address, its created objects by kind and name, and the verbs used on each kind."""

    address: str = ""
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    verbs: set[tuple[str, str]] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Returns the objects of a kind, such as `pods`."""
        return [item for (of, _), item in sorted(self.objects.items()) if of == kind]


@contextmanager
def running_api() -> Iterator[ClusterApi]:
    """Runs the server inside the block."""
    api = ClusterApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    api.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(api: ClusterApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Logs nothing: tests read the recorded requests."""

        def do_POST(self) -> None:
            body = self._body()
            kind, _, _ = self._place()
            api.verbs.add(("create", kind))
            self._keep(kind, body, status=201)

        def do_PATCH(self) -> None:
            body = self._body()
            kind, name, _ = self._place()
            # Apply creates missing objects.
            if (kind, name) not in api.objects:
                api.verbs.add(("create", kind))
            api.verbs.add(("patch", kind))
            self._keep(kind, {**api.objects.get((kind, name), {}), **body}, status=200)

        def do_GET(self) -> None:
            kind, name, query = self._place()
            if "watch" in query:
                api.verbs.add(("watch", kind))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                api.closing.wait(60)
            elif name:
                api.verbs.add(("get", kind))
                item = api.objects.get((kind, name))
                self._answer(item or {"kind": "Status", "status": "Failure", "code": 404}, 200 if item else 404)
            else:
                api.verbs.add(("list", kind))
                listed = {"apiVersion": "v1", "kind": f"{kind[:-1].capitalize()}List", "metadata": {}}
                self._answer({**listed, "items": api.of_kind(kind)}, 200)

        def do_DELETE(self) -> None:
            self._body()
            kind, name, _ = self._place()
            api.verbs.add(("delete" if name else "deletecollection", kind))
            self._answer({"apiVersion": "v1", "kind": "Status", "status": "Success"}, 200)

        def _place(self) -> tuple[str, str, dict[str, list[str]]]:
            parts = urlsplit(self.path)
            words = parts.path.split("/namespaces/", 1)[-1].split("/")[1:]
            return words[0] if words else "", words[1] if len(words) > 1 else "", parse_qs(parts.query)

        def _body(self) -> dict[str, Any]:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body: dict[str, Any] = json.loads(data) if data else {}
            return body

        def _keep(self, kind: str, body: dict[str, Any], *, status: int) -> None:
            name = body["metadata"]["name"]
            api.objects[kind, name] = body
            self._answer({**body, "metadata": {**body["metadata"], "uid": f"uid-of-{name}"}}, status)

        def _answer(self, body: dict[str, Any], status: int) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
