"""The turn in which pages are made: one at a time, and the process that hosts them gets its own in between.

Making a page is work of the interpreter, which runs one thread at a time: with several pages at once whoever else needs
it, such as a server that takes heartbeats of tasks, would wait behind all of them, for five milliseconds each. Waiting
is no work: whoever waits for the storage or for a child process leaves the turn to the next one meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: While a page is made, any other thread that is ready gets the interpreter after so long.
_SWITCH_SECONDS: Final = 0.0005
_held = threading.local()


class Turn:
    """The turn of one console. Threads only, and none that has it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usual_seconds = sys.getswitchinterval()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Make a page within the block, once nobody else makes one."""
        self._take()
        _held.turn = self
        try:
            yield
        finally:
            _held.turn = None
            self._give()

    def _take(self) -> None:
        self._lock.acquire()
        self._usual_seconds = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_SECONDS, self._usual_seconds))

    def _give(self) -> None:
        sys.setswitchinterval(self._usual_seconds)
        self._lock.release()


@contextmanager
def waiting() -> Iterator[None]:
    """Leave the turn that this thread has, if it has one, while it waits for something within the block."""
    turn: Turn | None = getattr(_held, "turn", None)
    if turn is None:
        yield
        return
    turn._give()
    try:
        yield
    finally:
        turn._take()
