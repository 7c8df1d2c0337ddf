"""Retries with exponential backoff and full jitter, so that contending processes do not collide again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


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
