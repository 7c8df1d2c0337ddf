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
_RENDER_SWITCH_SECONDS: Final = 0.0005
_current = threading.local()


class RenderLock:
    """The turn of one console. Threads only, and none that has it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switch_interval = sys.getswitchinterval()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make a page within the block, once nobody else makes one."""
        self._acquire()
        _current.turn = self
        try:
            yield
        finally:
            _current.turn = None
            self._release()

    def _acquire(self) -> None:
        self._lock.acquire()
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(_RENDER_SWITCH_SECONDS, self._switch_interval))

    def _release(self) -> None:
        sys.setswitchinterval(self._switch_interval)
        self._lock.release()


@contextmanager
def release_while_waiting() -> Iterator[None]:
    """Leave the turn that this thread has, if it has one, while it waits for something within the block."""
    render_lock: RenderLock | None = getattr(_current, "turn", None)
    if render_lock is None:
        yield
        return
    render_lock._release()
    try:
        yield
    finally:
        render_lock._acquire()
