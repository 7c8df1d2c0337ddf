"""Base class of background threads."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """A daemon thread that runs `_run`. Subclasses must return from `_run` soon after `_stopping` is set.

    `start` may be called once. `stop` may be called repeatedly, from any thread, and before `start`.
    """

    def __init__(self, *, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> bool:
        """Signals the thread to end and waits for it; returns whether it has ended within the timeout."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=timeout_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def _run(self) -> None:
        """Does the thread's work. Must not raise, since nothing reports the exception."""
