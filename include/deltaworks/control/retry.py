"""Attempts at what others hinder, with random waits between them, so that those who met do not meet again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


def attempts(max_attempts: int, *, first_wait_seconds: float, max_wait_seconds: float) -> Iterator[int]:
    """The numbers 1 to `most`. Before all but the first it waits, on average twice as long each time.

    Whoever has succeeded leaves the loop, and nothing is waited for; behind the last attempt nothing is either.

    Args:
        first_seconds: what the first wait takes at most.
        longest_seconds: what any wait takes at most.
    """
    for attempt in range(1, max_attempts + 1):
        if attempt > 1:
            # The exponent is bounded as well: 2**n of a large n is no float.
            time.sleep(random.uniform(0, min(max_wait_seconds, first_wait_seconds * 2.0 ** min(attempt - 2, 60))))
        yield attempt
