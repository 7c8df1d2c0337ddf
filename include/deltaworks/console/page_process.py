"""Renders pages in a separate process, to keep the CPU work out of the host's interpreter.

The host decides access rights and sends them to the process. The process reads control objects and declarations,
renders the page and compresses it. It is started at the first page and restarted after a crash. If it cannot render a
page, the host renders it.
"""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from fastapi import Response

from deltaworks.console.host import Person
from deltaworks.console.page_builder import HostState, RequestData
from deltaworks.console.page_context import PageMissingError
from deltaworks.console.page_rpc import PageCall, RenderedPage, Right, has_right, request_page
from deltaworks.console.pages.base import Page

log = logging.getLogger(__name__)
COMMAND: Final = (sys.executable, "-m", "deltaworks.console.page_worker")
#: A page may wait for table reads, and the first one for the start of the process.
DEADLINE_SECONDS: Final = 20.0
#: After this many crashes within a minute, the host renders pages itself for a minute.
_MAX_CRASHES, _CRASH_WINDOW_SECONDS = 3, 60.0
_CONNECTIONS = 4
_MAX_REMEMBERED = 500
_DROPPED_HEADERS = frozenset({"content-length"})


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    idle: queue.LifoQueue[Connection]

    def kill(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()


class PageProcess:
    """The process that renders pages. Thread-safe; each caller waits for its page.

    Args:
        prepare: called before the process starts, to set environment variables that it needs.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMAND,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._prepare = prepare
        self._command = command
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._crashes: list[float] = []
        # Rights that each page asked for earlier. They are sent with the next request of the page.
        self._usual_rights: OrderedDict[tuple[str, str], frozenset[Right]] = OrderedDict()

    def render(self, page: Page, request: RequestData, person: Person, host_state: HostState) -> Response | None:
        """Returns the page; None if the process cannot render it.

        Raises:
            PageMissingError: the page does not exist, or the person may not see it; RuntimeError: rendering failed.
        """
        for _ in range(2):
            worker = self._running_worker()
            if worker is None:
                return None
            rendered = self._render_in(worker, page, request, person, host_state)
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

    def _render_in(
        self, worker: _Worker, page: Page, request: RequestData, person: Person, host_state: HostState
    ) -> RenderedPage | None:
        """Returns the page. Returns None if the process has ended, or does not answer; in the second case it is
        killed."""
        key = page.name, request.path
        rights = {right: has_right(person, *right) for right in self._usual_rights.get(key, ())}
        call = PageCall(page=page.name, request=request, person=person.name, host_state=host_state, rights=rights)
        try:
            connection = worker.idle.get(timeout=self._deadline_seconds)
            rendered, requested_rights = request_page(connection, call, person, seconds=self._deadline_seconds)
        except (OSError, EOFError, queue.Empty) as error:
            log.warning("The page process is killed: %s: %s", type(error).__name__, error)
            worker.kill()
            return None
        worker.idle.put(connection)
        if requested_rights:
            self._remember_rights(key, frozenset((*rights, *requested_rights)))
        return rendered

    def _remember_rights(self, key: tuple[str, str], requested_rights: frozenset[Right]) -> None:
        with self._lock:
            self._usual_rights[key] = requested_rights
            self._usual_rights.move_to_end(key)
            while len(self._usual_rights) > _MAX_REMEMBERED:
                self._usual_rights.popitem(last=False)


def _start_worker(command: Sequence[str]) -> _Worker:
    pairs = [socket.socketpair() for _ in range(_CONNECTIONS)]
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
    idle: queue.LifoQueue[Connection] = queue.LifoQueue()
    for ours, _ in pairs:
        idle.put(Connection(ours.detach()))
    return _Worker(process, idle)


def _to_response(rendered: RenderedPage) -> Response:
    if rendered.missing is not None:
        raise PageMissingError(rendered.missing)
    if rendered.failed:
        raise RuntimeError(f"The page could not be rendered:\n{rendered.failed}")
    headers = {name: value for name, value in rendered.headers.items() if name not in _DROPPED_HEADERS}
    return Response(rendered.body, rendered.status, headers=headers)
