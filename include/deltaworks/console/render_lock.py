"""A lock that allows one page to be rendered at a time, so that the host's other threads are not delayed.

Rendering is CPU work of the interpreter, which runs one thread at a time. If several pages were rendered at the same
time, other threads of the host, such as those that serve heartbeats of tasks, would wait five milliseconds for each of
them. A thread that waits for the storage or a child process releases the lock meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The interpreter's switch interval while a page is rendered.
_RENDER_SWITCH_SECONDS: Final = 0.0005
_current = threading.local()


class RenderLock:
    """The render lock of a console. For threads; not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switch_interval = sys.getswitchinterval()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lock within the block."""
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
    """Releases the lock of this thread, if it holds one, within the block."""
    render_lock: RenderLock | None = getattr(_current, "turn", None)
    if render_lock is None:
        yield
        return
    render_lock._release()
    try:
        yield
    finally:
        render_lock._acquire()
