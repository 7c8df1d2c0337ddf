"""The process of a collector: a spool, a door and an HTTP server, from the start to the end by SIGTERM.

Exit codes: 0 after a signal, 10 for a wrong declaration, 20 where another process has the spool, 21 where its disk has
failed. Whoever runs it starts it again after any of them; no event that was answered depends on how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from collector.app import CollectorApp, ServerState
from collector.connections import KEEP_ALIVE_SECONDS, LimitedProtocol, close_idle
from collector.disk import Disk
from collector.metrics import Metrics
from collector.recovery import RecoveredSpool, recover
from collector.request_handler import RequestHandler, RequestHead
from collector.responses import Response
from collector.spool import Spool
from collector.spool_folder import SpoolFolder
from collector.stamps import SourceRedaction
from collector.submissions import BatchingWriter, OnWritten, WriteResult
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0


class Background(Protocol):
    """What runs beside the door in threads of its own: the drain of the spool, the heartbeat."""

    def start(self) -> None:
        """Begin."""

    def stop(self, *, timeout_seconds: float) -> bool:
        """End what is under way within so long; whether nothing is left to do. Nobody writes to the spool any more."""


#: Makes what runs beside the door, of a spool that is recovered and has not begun.
BackgroundFactory = Callable[[CollectorSpec, SpoolFolder, Spool, RecoveredSpool], Sequence[Background]]


def no_background(
    _spec: CollectorSpec, _folder: SpoolFolder, _spool: Spool, _recovered: RecoveredSpool
) -> list[Background]:
    """A door alone: what it takes stays in the spool until another process drains it."""
    return []


class _Server(uvicorn.Server):
    """A server whose signals are the collector's: uvicorn's own handlers close the port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class CollectorProcess:
    """One collector with a spool folder of its own."""

    def __init__(
        self,
        spec: CollectorSpec,
        folder: Path,
        *,
        open_background: BackgroundFactory = no_background,
        redactions: Mapping[str, SourceRedaction] | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._spec = spec
        self._open_background = open_background
        self._redactions = redactions
        self._path = folder
        self._disk = disk
        self._metrics = Metrics()
        self._error: DeltaworksError | None = None
        self._stopping: asyncio.Event | None = None

    def run(self) -> int:
        """Take events until a signal; the exit code.

        Raises:
            DeltaworksError: SPOOL_LOCKED, SPOOL_FOLDER_DAMAGED, SPOOL_SEGMENT_UNKNOWN; COLLECTOR_WITHOUT_SPOOL where it
                is declared to answer after its sink, as a Lambda does.
        """
        if self._spec.spool.ack == "sink":
            raise ConfigError(
                "COLLECTOR_WITHOUT_SPOOL",
                f"The collector {self._spec.collector} declares `ack: sink`; a process answers from its spool.",
                hint="Write `ack: spool`, or run it as a Lambda (`make lambda`).",
            )
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold events, and what they say of people
        folder = SpoolFolder.acquire(self._path)
        try:
            recovered = recover(folder)
            for damage in recovered.damages:
                log.error("SPOOL_DAMAGED %s", damage)
            config = self._config()
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(self._serve(config, folder, recovered))
        finally:
            folder.close()
        if self._error is None:
            return 0
        print(self._error.as_line(), flush=True)  # noqa: T201  the last line is what a launcher reads
        return self._error.exit_code

    def _config(self) -> uvicorn.Config:
        limits = self._spec.limits
        methods = {"max_connections": limits.connections, "handle_complete": staticmethod(self._handle_complete)}
        protocol = type("Protocol", (LimitedProtocol,), methods)
        return uvicorn.Config(
            self._asgi,
            interface="asgi3",
            http=protocol,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(limits.body_seconds) + 5,
        )

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def _handle_complete(self, head: RequestHead, body: bytes, reply: Callable[[Response], None]) -> bool:
        return self._app.handle_complete(head, body, reply)

    async def _serve(self, config: uvicorn.Config, folder: SpoolFolder, recovered: RecoveredSpool) -> None:
        loop, leaving = asyncio.get_running_loop(), asyncio.Event()
        self._stopping = leaving
        spool = self._spool(folder, recovered, loop)
        numbers = folder.source_numbers(self._spec.sources)
        handler = RequestHandler(
            self._spec,
            collector_id=folder.collector_hex,
            source_numbers=numbers,
            rejection_reason=spool.rejection_reason,
            redactions=self._redactions,
        )
        self._app = CollectorApp(handler, BatchingWriter(spool, loop), metrics=self._metrics)
        background = self._open_background(self._spec, folder, spool, recovered)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, leaving.set)
        spool.start()
        for service in background:
            service.start()
        server = _Server(config)
        listener, metrics_listener = self._listeners()
        housekeeping = loop.create_task(self._run_housekeeping(spool, server))
        serving = loop.create_task(server.serve([listener]))
        metrics_server = await asyncio.start_server(self._metrics_handler(spool), sock=metrics_listener)
        places = {"port": listener.getsockname()[1], "metrics_port": metrics_listener.getsockname()[1]}
        print("COLLECTOR_LISTENING " + json.dumps(places), flush=True)  # noqa: T201  for whoever has started it
        await leaving.wait()
        await self._drain_requests(server, serving)
        await asyncio.to_thread(spool.close)
        housekeeping.cancel()
        metrics_server.close()
        for service in background:
            await asyncio.to_thread(service.stop, timeout_seconds=self._spec.limits.flush_seconds)

    async def _drain_requests(self, server: _Server, serving: asyncio.Task[None]) -> None:
        """Take requests for as long as balancers may still send some, then no more, and end those under way."""
        self._app.state = ServerState.DRAINING
        if self._error is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(serving), self._spec.limits.drain_seconds)
        server.should_exit = True
        await serving
        self._app.state = ServerState.CLOSED

    def _spool(self, folder: SpoolFolder, recovered: RecoveredSpool, loop: asyncio.AbstractEventLoop) -> Spool:
        def wake(results: list[tuple[OnWritten, WriteResult]]) -> None:
            loop.call_soon_threadsafe(_call_all, results)

        def on_group(requests: int, seconds: float) -> None:
            self._metrics.group_requests.observe(requests)
            self._metrics.sync_seconds.observe(seconds)

        return Spool(
            folder,
            self._spec.spool,
            next_seq=recovered.next_seq,
            on_group_written=wake,
            on_failure=lambda error: loop.call_soon_threadsafe(self._fail, error),
            on_sync=on_group,
            disk=self._disk,
        )

    def _fail(self, error: TransientError) -> None:
        self._error = self._error or error
        if self._stopping is not None:
            self._stopping.set()

    async def _run_housekeeping(self, spool: Spool, server: _Server) -> None:
        """About every second: bodies that do not come, connections that say nothing, what the disk has left."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._app.reject_slow_bodies(loop.time())
            connections = list(server.server_state.connections)
            close_idle(connections, now=time.monotonic(), head_seconds=self._spec.limits.body_seconds)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(spool.refresh_disk_usage)

    def _listeners(self) -> tuple[socket.socket, socket.socket]:
        listen = self._spec.listen
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        return (
            socket.create_server((listen.host, listen.port), family=family, backlog=2048),
            socket.create_server((listen.host, listen.metrics_port), family=family),
        )

    def _metrics_handler(self, spool: Spool) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
                status, text = b"404 Not Found", ""
                if head.startswith((b"GET /metrics ", b"GET /metrics?")):
                    status, text = b"200 OK", self._metrics.text(spool.gauges())
                body = text.encode()
                lines = [b"HTTP/1.1 " + status, b"content-type: text/plain; version=0.0.4; charset=utf-8"]
                lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
                writer.write(b"\r\n".join(lines))
                await writer.drain()
            writer.close()

        return answer


def _call_all(results: list[tuple[OnWritten, WriteResult]]) -> None:
    for done, written in results:
        done(written)
