"""Renders pages in a separate process, to keep the CPU work out of the host's interpreter.

The host decides access rights and sends them with each request, as the ids of DAGs that the person may read and start.
The process reads control objects and declarations, renders the page and compresses it; it reads tables and draws
dashboards in child processes. It is started at the first page and restarted after a crash. If it cannot render a page,
the host renders it.

The process has a lower CPU priority and ends with the host. Each number on its command line is the file descriptor of a
socket to the host; one thread serves each socket.
"""

from __future__ import annotations

import gzip
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, Final

import orjson
from fastapi import Response

from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects, CatalogCache
from deltaworks.console.console import DOCUMENT_THREADS, THREADS
from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_builder import HostState, PageBuilder, RequestData, keep_read
from deltaworks.console.page_context import READING_STATUS, PageError, PageMissingError, PageReadingError
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.registry import PAGES
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import DeltaworksError

log = logging.getLogger(__name__)
COMMAND: Final = (sys.executable, "-m", "deltaworks.console.page_process")
#: A page may wait for table reads, and the first one for the start of the process.
DEADLINE_SECONDS: Final = 20.0
#: A document may also wait for another one, which is being drawn.
_DOCUMENT_SECONDS: Final = 130.0
#: After this many crashes within a minute, the host renders pages itself for a minute.
_MAX_CRASHES, _CRASH_WINDOW_SECONDS = 3, 60.0
_MISSING = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCall:
    """A request to render a page for a person."""

    page: str
    request: RequestData
    person: Person
    host_state: HostState

    def encode(self) -> bytes:
        """Encodes the request as JSON."""
        return orjson.dumps(self, default=list)

    @classmethod
    def decode(cls, data: bytes) -> PageCall:
        """Decodes a request that `encode` encoded."""
        message = orjson.loads(data)
        person, host_state = message["person"], message["host_state"]
        approvals = (
            PendingApproval(**{**one, "since": datetime.fromisoformat(one["since"]) if one["since"] else None})
            for one in host_state["pending_approvals"]
        )
        return cls(
            page=message["page"],
            request=RequestData(**message["request"]),
            person=Person(
                name=person["name"],
                readable_dags=_as_set(person["readable_dags"]),
                startable_dags=_as_set(person["startable_dags"]),
            ),
            host_state=HostState(
                paused_dags=_as_set(host_state["paused_dags"]),
                actions_unavailable=host_state["actions_unavailable"],
                pending_approvals=tuple(approvals),
            ),
        )


def _as_set(ids: list[str] | None) -> frozenset[str] | None:
    return None if ids is None else frozenset(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPage:
    """A rendered page; with `error` the page cannot be shown, with `failed` rendering failed."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str | None = None
    failed: str = ""

    def encode(self) -> bytes:
        """Encodes the page as a line of JSON and the body."""
        head = {"status": self.status, "headers": self.headers, "error": self.error, "failed": self.failed}
        return orjson.dumps(head) + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes) -> RenderedPage:
        """Decodes a page that `encode` encoded."""
        head, _, body = data.partition(b"\n")
        values: dict[str, Any] = orjson.loads(head)
        return cls(**values, body=body)


@dataclass(slots=True)
class _Line:
    """A connection to the process, over which it first says that it is ready."""

    connection: Connection
    is_ready: bool = False


@dataclass(slots=True)
class _Worker:
    """The process, and its idle connections for pages (False) and for documents (True)."""

    process: subprocess.Popen[bytes]
    idle: Mapping[bool, queue.LifoQueue[_Line]]
    started_at: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()


class PageProcess:
    """The process that renders pages. Thread-safe; each caller waits for its page.

    Args:
        prepare: called before the process starts, to set environment variables that it needs.
        start_seconds: how long a page waits for a process that is starting, before the browser has to come back.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMAND,
        deadline_seconds: float = DEADLINE_SECONDS,
        start_seconds: float = 1.0,
    ) -> None:
        self._start_seconds = start_seconds
        self._prepare = prepare
        self._command = command
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._crashes: list[float] = []

    def render(self, page: Page, request: RequestData, person: Person, host_state: HostState) -> Response | None:
        """Returns the page; None if the process cannot render it.

        Raises:
            PageError: the page does not exist, the person may not see it, or it cannot be drawn; PageReadingError: its
                data are still being read, or the process is still starting; RuntimeError: rendering failed.
        """
        call = PageCall(page=page.name, request=request, person=person, host_state=host_state)
        for _ in range(2):
            worker = self._running_worker()
            if worker is None:
                return None
            rendered = self._render_in(worker, call, document=page.document)
            if rendered is not None:
                return _to_response(rendered)
        return None

    def close(self) -> None:
        """Ends the process. The next page starts a new one."""
        with self._lock:
            if self._worker is not None:
                self._worker.kill()
            self._worker = None

    def _running_worker(self) -> _Worker | None:
        with self._lock:
            if self._worker is not None and self._worker.process.poll() is None:
                return self._worker
            if self._worker is not None:
                self._record_crash()
            now = time.monotonic()
            self._crashes = [at for at in self._crashes if now - at < _CRASH_WINDOW_SECONDS]
            if len(self._crashes) >= _MAX_CRASHES:
                return None
            try:
                self._prepare()
                self._worker = _start_worker(self._command)
            except OSError as error:
                log.warning("The page process cannot be started: %s", error)
                self._record_crash()
            return self._worker

    def _record_crash(self) -> None:
        self._worker = None
        self._crashes.append(time.monotonic())

    def _render_in(self, worker: _Worker, call: PageCall, *, document: bool) -> RenderedPage | None:
        """Returns the page. Returns None if the process has ended, or does not answer; in the second case it is
        killed."""
        seconds = _DOCUMENT_SECONDS if document else self._deadline_seconds
        try:
            line = worker.idle[document].get(timeout=seconds)
            self._wait_until_ready(worker, line, worker.idle[document])
            connection = line.connection
            connection.send_bytes(call.encode())
            if not connection.poll(seconds):
                raise TimeoutError(f"no page within {seconds:.0f} s")
            rendered = RenderedPage.decode(connection.recv_bytes())
        except (OSError, EOFError, queue.Empty) as error:
            log.warning("The page process is killed: %s: %s", type(error).__name__, error)
            worker.kill()
            return None
        worker.idle[document].put(line)
        return rendered

    def _wait_until_ready(self, worker: _Worker, line: _Line, idle: queue.LifoQueue[_Line]) -> None:
        if line.is_ready:
            return
        if not line.connection.poll(self._start_seconds):
            if time.monotonic() - worker.started_at > self._deadline_seconds:
                raise TimeoutError(f"not started within {self._deadline_seconds:.0f} s")
            idle.put(line)
            raise PageReadingError
        line.connection.recv_bytes()
        line.is_ready = True


def _start_worker(command: Sequence[str]) -> _Worker:
    pairs = [socket.socketpair() for _ in range(THREADS + DOCUMENT_THREADS)]
    worker_fds = [pair[1].fileno() for pair in pairs]
    try:
        process = subprocess.Popen(
            [*command, *map(str, worker_fds)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=worker_fds
        )
    except OSError:
        for ours, _ in pairs:
            ours.close()
        raise
    finally:
        for _, other in pairs:
            other.close()
    idle: dict[bool, queue.LifoQueue[_Line]] = {False: queue.LifoQueue(), True: queue.LifoQueue()}
    for number, (ours, _) in enumerate(pairs):
        idle[number >= THREADS].put(_Line(Connection(ours.detach())))
    return _Worker(process, idle)


def _to_response(rendered: RenderedPage) -> Response:
    if rendered.failed:
        raise RuntimeError(f"The page could not be rendered:\n{rendered.failed}")
    if rendered.error is not None:
        if rendered.status == READING_STATUS:
            raise PageReadingError
        missing = rendered.status == _MISSING
        raise PageMissingError(rendered.error) if missing else PageError(rendered.error, status=rendered.status)
    return Response(rendered.body, rendered.status, headers=dict(rendered.headers))


#: The host has priority, since it also serves heartbeats of tasks.
_NICENESS: Final = 5
_MIN_GZIP_BYTES = 1_000
_GZIP_LEVEL = 4
_PAGES = {page.name: page for page in PAGES}


def serve(connection: Connection, builder: PageBuilder) -> None:
    """Renders pages until the host has ended. The first message says that the process is ready."""
    with suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            call = PageCall.decode(connection.recv_bytes())
            try:
                rendered = _render(call, builder)
            except PageError as error:
                rendered = RenderedPage(status=error.status, error=str(error))
            except Exception:  # the host logs the error and responds as for an error in its own process
                rendered = RenderedPage(failed=traceback.format_exc())
            connection.send_bytes(rendered.encode())


def _render(call: PageCall, builder: PageBuilder) -> RenderedPage:
    answer = builder.render(_PAGES[call.page], call.request, call.person, call.host_state)
    body, headers = bytes(answer.body), dict(answer.headers)
    if call.request.accepts_gzip and len(body) >= _MIN_GZIP_BYTES:
        # Compressed here, so that the host does not compress it on its event loop.
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    headers.pop("content-length", None)
    return RenderedPage(status=answer.status_code, headers=headers, body=body)


def main(descriptors: Sequence[str]) -> None:
    """Serves the sockets until the host has closed all of them."""
    os.nice(_NICENESS)
    catalog = CatalogCache()

    def open_lake() -> ObjectStore:
        return open_objects(catalog.current().environment.lake, timeouts=CLIENT_TIMEOUTS)

    builder = PageBuilder(records=CachedObjects(open_lake), catalog=catalog)
    with suppress(DeltaworksError):
        catalog.current()
    threading.Thread(target=keep_read, args=(builder,), name="console-read-ahead", daemon=True).start()
    threads = [
        threading.Thread(target=serve, args=(Connection(int(number)), builder), name=f"console-pages-{number}")
        for number in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
