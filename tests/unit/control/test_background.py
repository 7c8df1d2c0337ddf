"""Background threads end when stopped, and report if they have not."""

from __future__ import annotations

import threading

from deltaworks.control.background import BackgroundThread


class BlockingThread(BackgroundThread):
    """Waits until it is stopped, and then until it is released."""

    def __init__(self) -> None:
        super().__init__(name="waiting")
        self.may_end = threading.Event()

    def _run(self) -> None:
        self._stopping.wait()
        self.may_end.wait()


def test_stop_returns_whether_the_thread_has_ended() -> None:
    waiting = BlockingThread()
    waiting.start()

    assert not waiting.stop(timeout_seconds=0)
    waiting.may_end.set()
    assert waiting.stop(timeout_seconds=60)
    assert waiting.stop(timeout_seconds=0)


def test_a_thread_that_never_started_counts_as_ended() -> None:
    assert BlockingThread().stop(timeout_seconds=0)
