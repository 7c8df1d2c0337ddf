"""The process of a collector: spool, request handler and HTTP server, until SIGTERM.

Exit codes: 0 after a signal, 10 for an invalid declaration, 20 if another process has locked the spool, 21 if its disk
failed. The launcher restarts it after any of them; acknowledged events do not depend on how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import uvloop

from collector.admission import Bounds
from collector.app import CollectorApp, ServerState
from collector.connections import Front
from collector.disk import Disk
from collector.exposition import CONTENT_TYPE, exposition
from collector.metrics import Metrics
from collector.recovery import RecoveredSpool, recover
from collector.request_handler import RequestHandler
from collector.spool import Spool
from collector.spool_folder import SpoolFolder
from collector.stamps import SourceRedaction
from collector.submissions import BatchingWriter, OnWritten, WriteResult
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_BACKLOG = 2048
#: Open files other than connections: the spool, sinks, listeners.
_OTHER_FILES = 256
#: Concurrent scrapes of metrics, and the time of each.
_MAX_SCRAPES, _SCRAPE_SECONDS = 8, 5.0


class Background(Protocol):
    """A service with its own threads, such as the drain or the heartbeat."""

    def start(self) -> None:
        """Starts the service."""

    def stop(self, *, timeout_seconds: float) -> bool:
        """Completes current work within the timeout; returns whether nothing is left. The spool's writer must have
        stopped.
        """


#: Creates the background services for a recovered spool that has not started.
BackgroundFactory = Callable[[CollectorSpec, SpoolFolder, Spool, RecoveredSpool], Sequence[Background]]


def no_background(
    _spec: CollectorSpec, _folder: SpoolFolder, _spool: Spool, _recovered: RecoveredSpool
) -> list[Background]:
    """Returns no services: events stay in the spool until another process drains it."""
    return []


class CollectorProcess:
    """One collector with its own spool folder."""

    def __init__(
        self,
        spec: CollectorSpec,
        folder: Path,
        *,
        open_background: BackgroundFactory = no_background,
        redactions: Mapping[str, SourceRedaction] | None = None,
        disk: Disk | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._spec = spec
        self._open_background = open_background
        self._redactions = redactions
        self._path = folder
        self._disk = disk
        self._bounds = bounds
        self._metrics = Metrics()
        self._error: DeltaworksError | None = None
        self._stopping: asyncio.Event | None = None

    def run(self) -> int:
        """Receives events until a signal; returns the exit code.

        Raises:
            DeltaworksError: SPOOL_LOCKED, SPOOL_FOLDER_DAMAGED, SPOOL_SEGMENT_UNKNOWN; COLLECTOR_WITHOUT_SPOOL, the
                collector is declared with `ack: sink`, for a Lambda.
        """
        if self._spec.spool.ack == "sink":
            raise ConfigError(
                "COLLECTOR_WITHOUT_SPOOL",
                f"The collector {self._spec.collector} declares `ack: sink`, but a process acknowledges from its "
                "spool.",
            )
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain personal data
        folder = SpoolFolder.acquire(self._path)
        try:
            recovered = recover(folder)
            for damage in recovered.damages:
                log.error("SPOOL_DAMAGED %s", damage)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(folder, recovered))
        finally:
            folder.close()
        if self._error is None:
            return 0
        print(self._error.as_line(), flush=True)  # noqa: T201  launchers read the last line
        return self._error.exit_code

    async def _serve(self, folder: SpoolFolder, recovered: RecoveredSpool) -> None:
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
            bounds=self._bounds,
        )
        self._app = CollectorApp(handler, BatchingWriter(spool, loop), metrics=self._metrics)
        background = self._open_background(self._spec, folder, spool, recovered)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, leaving.set)
        spool.start()
        for service in background:
            service.start()
        listen = self._spec.listen
        front = Front(self._app, self._spec.limits, bounds=self._bounds, trusted_hops=listen.trusted_hops)
        front.max_connections = _raise_open_files(front.max_connections)
        listener, metrics_listener = self._listeners()
        housekeeping = loop.create_task(self._run_housekeeping(spool, front))
        gc.collect()
        gc.freeze()  # otherwise each collection would look at all modules, and keep requests waiting
        server = await loop.create_server(front.connect, sock=listener, backlog=_BACKLOG)
        metrics_server = await asyncio.start_server(self._metrics_handler(spool), sock=metrics_listener)
        addresses = {"port": listener.getsockname()[1], "metrics_port": metrics_listener.getsockname()[1]}
        print("COLLECTOR_LISTENING " + json.dumps(addresses), flush=True)  # noqa: T201  for the launcher
        await leaving.wait()
        await self._drain_requests(server, front)
        await asyncio.to_thread(spool.close)
        housekeeping.cancel()
        metrics_server.close()
        for service in background:
            await asyncio.to_thread(service.stop, timeout_seconds=self._spec.limits.flush_seconds)

    async def _drain_requests(self, server: asyncio.Server, front: Front) -> None:
        """Accepts requests while load balancers may still send some, then completes those in progress."""
        self._app.state = ServerState.DRAINING
        if self._error is None:
            await asyncio.sleep(self._spec.limits.drain_seconds)
        server.close()
        await front.close(timeout_seconds=self._spec.limits.body_seconds + 5)
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

    async def _run_housekeeping(self, spool: Spool, front: Front) -> None:
        """Ends connections without progress and refreshes disk usage, about once per second."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            front.reap()
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
        scrapes = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal scrapes
            scrapes += 1
            try:
                if scrapes <= _MAX_SCRAPES:
                    await asyncio.wait_for(self._answer_scrape(reader, writer, spool), _SCRAPE_SECONDS)
                writer.close()
            except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                writer.transport.abort()
            finally:
                scrapes -= 1

        return answer

    async def _answer_scrape(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spool: Spool) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = b"404 Not Found", b""
        if head.startswith((b"GET /metrics ", b"GET /metrics?")):
            status, body = b"200 OK", exposition(self._metrics, spool.gauges())
        lines = [b"HTTP/1.1 " + status, b"content-type: " + CONTENT_TYPE.encode()]
        lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
        writer.write(b"\r\n".join(lines))
        await writer.drain()


def _call_all(results: list[tuple[OnWritten, WriteResult]]) -> None:
    for done, written in results:
        done(written)


def _raise_open_files(connections: int) -> int:
    """Raises the limit of open files for the connections; returns how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _OTHER_FILES))
