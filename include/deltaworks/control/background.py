"""A thread of a process that does its work beside the rest of it, until it is stopped."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """One thread that runs `_run`, which returns soon after `_stopping` is set. It never keeps its process from ending.

    `start` is called once at most, `stop` as often as one likes and from any thread, before a start too.
    """

    def __init__(self, *, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> bool:
        """Have it end, and wait for that so long; whether it has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=timeout_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does. It raises nothing: nobody would see it."""
