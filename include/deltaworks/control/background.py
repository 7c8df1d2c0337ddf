"""Background threads, concurrent requests and retries, for work that waits for storage or the network.

Small object-store requests use little CPU, so many run concurrently. Retries use exponential backoff with full jitter,
so that contending processes do not collide again.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar


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


#: A boto3 client keeps ten connections open by default; S3 answers thousands of requests per second.
_MAX_THREADS = 16
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Applies a function to all items in threads and returns the results in order.

    If calls fail, an exception is raised after all calls have ended.
    """
    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="requests") as pool:
        return list(pool.map(function, items))


def attempts(max_attempts: int, *, first_wait_seconds: float, max_wait_seconds: float) -> Iterator[int]:
    """Yields attempt numbers from 1 to `max_attempts`, and sleeps before each one but the first.

    The caller leaves the loop on success.

    Args:
        first_wait_seconds: upper bound of the first sleep; the bound doubles with each attempt.
        max_wait_seconds: upper bound of any sleep.
    """
    for attempt in range(1, max_attempts + 1):
        if attempt > 1:
            # The exponent is bounded: 2**n of a large n does not fit into a float.
            time.sleep(random.uniform(0, min(max_wait_seconds, first_wait_seconds * 2.0 ** min(attempt - 2, 60))))
        yield attempt
