"""Pages from a process apart, so that making them takes nothing of the host's interpreter.

The host decides who may what, and hands the answers along; the process reads control objects and declarations, makes
the page and packs it. It is started at the first page and again where it has died; a page that it does not make is made
by the host.
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

from deltaworks.console.look import PageMissingError
from deltaworks.console.page_calls import MadePage, PageCall, Right, exchange, right_of
from deltaworks.console.page_maker import PlainRequest, Surroundings
from deltaworks.console.pages.base import Page
from deltaworks.console.seams import Person

log = logging.getLogger(__name__)
COMMAND: Final = (sys.executable, "-m", "deltaworks.console.page_worker")
#: A page waits some seconds for what it reads from tables, the first one for the process to start.
DEADLINE_SECONDS: Final = 20.0
#: Once it has died so often within a minute, the host makes the pages itself for a minute.
_DEATHS, _REST_SECONDS = 3, 60.0
_CONNECTIONS = 4
_MOST_REMEMBERED = 500
_KEPT_HEADERS = frozenset({"content-length"})


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    idle: queue.LifoQueue[Connection]

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()


class PageProcess:
    """The process that makes pages. For several threads; each waits for its page.

    Args:
        prepare: called before it is started, to set variables of the environment that it needs.
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
        self._deaths: list[float] = []
        # What a page questions_back to know of a person, to be said at once the next time.
        self._usual: OrderedDict[tuple[str, str], frozenset[Right]] = OrderedDict()

    def make(self, page: Page, request: PlainRequest, person: Person, around: Surroundings) -> Response | None:
        """The page; None where the process cannot make it.

        Raises:
            PageMissingError: there is no such page that they may see; RuntimeError: making it failed there.
        """
        for _ in range(2):
            worker = self._running()
            if worker is None:
                return None
            made = self._asked_of(worker, page, request, person, around)
            if made is not None:
                return _answer(made)
        return None

    def close(self) -> None:
        """End the process. The next page starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
            self._worker = None

    def _running(self) -> _Worker | None:
        with self._lock:
            if self._worker is not None and self._worker.process.poll() is None:
                return self._worker
            if self._worker is not None:
                self._died()
            now = time.monotonic()
            self._deaths = [at for at in self._deaths if now - at < _REST_SECONDS]
            if len(self._deaths) >= _DEATHS:
                return None
            try:
                self._prepare()
                self._worker = _started(self._command)
            except OSError as error:
                log.warning("The process that makes pages cannot be started: %s", error)
                self._died()
            return self._worker

    def _died(self) -> None:
        self._worker = None
        self._deaths.append(time.monotonic())

    def _asked_of(
        self, worker: _Worker, page: Page, request: PlainRequest, person: Person, around: Surroundings
    ) -> MadePage | None:
        """The page, None where the process has gone or says nothing, and is ended."""
        key = page.name, request.path
        rights = {right: right_of(person, *right) for right in self._usual.get(key, ())}
        call = PageCall(page=page.name, request=request, person=person.name, around=around, rights=rights)
        try:
            connection = worker.idle.get(timeout=self._deadline_seconds)
            made, questions_back = exchange(connection, call, person, seconds=self._deadline_seconds)
        except (OSError, EOFError, queue.Empty) as error:
            log.warning("The process that makes pages is ended: %s: %s", type(error).__name__, error)
            worker.end()
            return None
        worker.idle.put(connection)
        if questions_back:
            self._remember(key, frozenset((*rights, *questions_back)))
        return made

    def _remember(self, key: tuple[str, str], questions_back: frozenset[Right]) -> None:
        with self._lock:
            self._usual[key] = questions_back
            self._usual.move_to_end(key)
            while len(self._usual) > _MOST_REMEMBERED:
                self._usual.popitem(last=False)


def _started(command: Sequence[str]) -> _Worker:
    pairs = [socket.socketpair() for _ in range(_CONNECTIONS)]
    theirs = [pair[1].fileno() for pair in pairs]
    try:
        process = subprocess.Popen(
            [*command, *map(str, theirs)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=theirs
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


def _answer(made: MadePage) -> Response:
    if made.missing is not None:
        raise PageMissingError(made.missing)
    if made.failed:
        raise RuntimeError(f"The page could not be made:\n{made.failed}")
    headers = {name: value for name, value in made.headers.items() if name not in _KEPT_HEADERS}
    return Response(made.body, made.status, headers=headers)
