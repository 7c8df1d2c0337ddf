"""Runs moto as the stack's AWS services, with all landing resources created before its port opens.

With a store and a journal, objects are stored in the store and other state in the journal, so a restart continues with
the same state. Without them everything is in memory, and each start begins with an empty bucket and empty queues. Each
request is logged.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from sandbox.servers.durable_messaging import DurableDeclarations, persist_declarations, persist_messages
from sandbox.servers.durable_objects import DurableObjects
from sandbox.servers.landing import LANDING_DEAD_QUEUE, LandingQueues, queue_url, wire_landing
from sandbox.servers.landing_journal import LandingJournal
from sandbox.servers.moto_corrections import correct_moto
from sandbox.servers.object_store import ObjectStoreAddress
from sandbox.stack.ports import HOST

_LOG_BYTES = 64 << 20
_LOG_BACKUPS = 4


def request_record(path: Path) -> logging.Logger:
    """Returns a logger that writes each request as one line: time, method, host, target, status."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_BACKUPS)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    record = logging.getLogger(f"deltaworks.landing.requests.{path}")
    record.setLevel(logging.INFO)
    record.propagate = False
    record.addHandler(handler)
    return record


def _recording_handler(record: logging.Logger) -> type[MotoRequestHandler]:
    class RecordingHandler(MotoRequestHandler):
        """moto's request handler, which logs to our file instead of stderr."""

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            host = self.headers.get("Host", "-")
            record.info("%s %s %s %s", self.command, host, self.path, getattr(code, "value", code))

    return RecordingHandler


@dataclass(frozen=True, slots=True)
class DurableState:
    """Where the server stores its state: objects in an S3 store, everything else in the journal file.

    Only one server per process can have one.
    """

    store: ObjectStoreAddress
    journal: Path


class LandingServer:
    """moto with landing resources on one port of this process. Without `durable`, its state ends with `stop`."""

    def __init__(
        self,
        *,
        port: int,
        request_log: Path,
        access_key: str,
        secret_key: str,
        durable: DurableState | None = None,
        host: str = HOST,
    ) -> None:
        self._host = host
        self._port = port
        self._handler = _recording_handler(request_record(request_log))
        self._keys = {"access_key": access_key, "secret_key": secret_key}
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._durable = durable
        self._server: BaseWSGIServer | None = None

    def start(self) -> LandingQueues:
        """Creates the landing resources through a private port, then opens the public port and serves it in a
        thread."""
        correct_moto()
        journal = LandingJournal(self._durable.journal) if self._durable else None
        if journal is not None:
            persist_messages(journal)
        private = self._serve(HOST, 0, self._moto)
        wire_landing(endpoint=_address(private.server_port), **self._keys)
        app = self._moto if journal is None else self._over_journal(journal, _address(private.server_port))
        private.shutdown()
        private.server_close()
        self._server = self._serve(self._host, self._port, app)
        endpoint = _address(self._port)
        return LandingQueues(queue_url(endpoint), queue_url(endpoint, LANDING_DEAD_QUEUE))

    def _over_journal(self, journal: LandingJournal, private: str) -> Any:
        assert self._durable is not None
        for service in ("sqs", "sns"):
            persist_declarations(journal, service)
        objects = DurableObjects(DurableDeclarations(self._moto, journal), store=self._durable.store, journal=journal)
        objects.recreate_buckets(private)
        objects.announce_pending()
        return objects

    def _serve(self, host: str, port: int, app: Any) -> BaseWSGIServer:
        server = make_server(host, port, app, threaded=True, request_handler=self._handler)
        # A client in a long poll must not delay the end of the process.
        server.daemon_threads = True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def stop(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _address(port: int) -> str:
    return f"http://{HOST}:{port}"


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Reads keys from the environment: DELTAWORKS_AWS_..., DELTAWORKS_LAKE_..."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=HOST, help="listen at this address")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request-log", type=Path, required=True)
    parser.add_argument("--journal", type=Path, help="keep messages and declarations in this file")
    parser.add_argument("--store", help="keep objects in the buckets of the S3 server at this address")
    options = parser.parse_args(arguments)
    if (options.journal is None) != (options.store is None):
        parser.error("--journal and --store go together")
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    server = LandingServer(
        host=options.host,
        port=options.port,
        request_log=options.request_log,
        access_key=os.environ["DELTAWORKS_AWS_ACCESS_KEY"],
        secret_key=os.environ["DELTAWORKS_AWS_SECRET_KEY"],
        durable=_durable_state(options) if options.journal else None,
    )
    queues = server.start()
    print(f"Serving on port {options.port}; objects are announced on {queues.queue_url}.", flush=True)
    ended.wait()
    return 0


def _durable_state(options: argparse.Namespace) -> DurableState:
    keys = os.environ["DELTAWORKS_LAKE_ACCESS_KEY"], os.environ["DELTAWORKS_LAKE_SECRET_KEY"]
    return DurableState(ObjectStoreAddress(options.store, *keys), options.journal)


if __name__ == "__main__":
    sys.exit(main())
