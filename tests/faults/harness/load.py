"""Lands objects at a steady pace in a separate thread until it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Load:
    """Calls `land` at a fixed interval. If a call raises, the error is stored in `failure` and landing ends."""

    def __init__(self, land: Callable[[], object], *, every_seconds: float = 1.0) -> None:
        self._land = land
        self._every = every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="load", daemon=True)
        self.landed_at: list[float] = []
        self.failure: Exception | None = None
        self._thread.start()

    def _loop(self) -> None:
        due = time.monotonic()
        while not self._end.is_set():
            try:
                self._land()
            except Exception as error:  # reported at the end; nothing lands after an error
                self.failure = error
                return
            self.landed_at.append(time.time())
            due += self._every
            self._end.wait(max(0.0, due - time.monotonic()))

    @property
    def seconds(self) -> float:
        """Seconds from the first object to the last."""
        return self.landed_at[-1] - self.landed_at[0] if len(self.landed_at) > 1 else 1.0

    def close(self) -> None:
        """Stops landing."""
        self._end.set()
        self._thread.join(timeout=60)
