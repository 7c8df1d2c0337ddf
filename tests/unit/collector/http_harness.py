"""A listening collector application that stores events in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from collector.app import CollectorApp
from collector.request_handler import RequestHandler
from collector.submissions import Entry, OnWritten, WriteResult
from deltaworks.specs.collector import CollectorSpec
from tests.waiting import eventually

KEY = "a-key"


def collector_spec(**source: Any) -> CollectorSpec:
    """A collector with the source `games`."""
    games = {
        "pipeline": "games",
        "keys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "sink": {"kind": "landing"},
        **source,
    }
    return CollectorSpec.model_validate({"collector": "edge", "sources": {"games": games}})


class MemoryWriter:
    """Accepts every submission immediately, unless `problem` is set."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.problem: str | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """Those that can be read."""
        return [json.loads(text) for text in self.texts]

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        self.texts += [b"1".join(entry.parts) for entry in entries]
        on_written(WriteResult(1))

    def rejection_reason(self) -> str | None:
        return self.problem

    def fill_ratio(self) -> float:
        return 0.0


def app_of(spec: CollectorSpec, writer: MemoryWriter) -> CollectorApp:
    """The application with a handler and the given writer."""
    handler = RequestHandler(
        spec, collector_id="c" * 32, source_numbers={"games": 0}, rejection_reason=writer.rejection_reason
    )
    return CollectorApp(handler, writer)


@contextmanager
def listening(app: Any, **options: Any) -> Iterator[str]:
    """The address at which an application answers. `options` are those of uvicorn."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the server listens")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
