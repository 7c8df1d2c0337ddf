"""A listening collector application that stores events in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from collector.admission import Bounds
from collector.app import CollectorApp
from collector.connections import Application, Connection, Front
from collector.request_handler import RequestHandler
from collector.submissions import Entry, OnWritten, WriteResult
from deltaworks.specs.collector import CollectorSpec, LimitsSpec

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


def app_of(spec: CollectorSpec, writer: MemoryWriter, *, bounds: Bounds | None = None) -> CollectorApp:
    """The application with a handler and the given writer."""
    handler = RequestHandler(
        spec,
        collector_id="c" * 32,
        source_numbers={"games": 0},
        rejection_reason=writer.rejection_reason,
        bounds=bounds,
    )
    return CollectorApp(handler, writer)


class ListeningFront:
    """A front that listens in a thread of its own.

    Attributes:
        connections: all connections so far.
    """

    def __init__(self, app: Application, limits: LimitsSpec, bounds: Bounds | None, *, trusted_hops: int = 0) -> None:
        self.front = Front(app, limits, bounds=bounds, trusted_hops=trusted_hops)
        self.connections: list[Connection] = []
        self.loop = uvloop.new_event_loop()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = self.socket.getsockname()[1]
        self.reaps = True
        self._stopping = asyncio.Event()

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function in the thread of the event loop; returns its result."""

        async def calling() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(calling(), self.loop).result(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stopping.set)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await self.loop.create_server(self._connect, sock=self.socket)
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.1)
            if self.reaps:
                self.front.reap()
        server.close()
        await self.front.close(timeout_seconds=1)

    def _connect(self) -> Connection:
        self.connections.append(self.front.connect())
        return self.connections[-1]


@contextmanager
def listening(
    app: Application, *, limits: LimitsSpec | None = None, bounds: Bounds | None = None, trusted_hops: int = 0
) -> Iterator[ListeningFront]:
    """A front that passes requests to an application."""
    server = ListeningFront(app, limits or LimitsSpec(), bounds, trusted_hops=trusted_hops)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
