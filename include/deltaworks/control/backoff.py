"""Back-off between runs of an endless job, which Airflow's `@continuous` schedule does not have.

A job that fails soon after its start waits before it exits, and longer with each such failure in a row; a run that
lasted resets the count. The count is an object beside the lease, so it survives the process.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

from deltaworks.control.objects import ObjectStore

QUICK_SECONDS = 120.0
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 300.0


class RestartBackoff:
    """Counts quick failures in a row and waits accordingly."""

    def __init__(self, objects: ObjectStore, key: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._objects = objects
        self._key = key
        self._sleep = sleep
        self._started = time.monotonic()

    def failures(self) -> int:
        """Quick failures in a row so far."""
        found = self._objects.get(self._key)
        return int(json.loads(found.data)["failures"]) if found else 0

    def succeeded(self) -> None:
        """The run ended as it should."""
        if self.failures():
            self._objects.delete(self._key)

    def failed(self) -> float:
        """The run failed: count it, wait, and return the seconds waited."""
        quick = time.monotonic() - self._started < QUICK_SECONDS
        failures = self.failures() + 1 if quick else 1
        self._objects.put(self._key, json.dumps({"failures": failures}).encode())
        # The exponent is bounded as well: after days of failures 2**n is no float any more.
        wait_seconds: float = min(FIRST_WAIT_SECONDS * 2 ** min(failures - 1, 16), LONGEST_WAIT_SECONDS)
        wait_seconds *= random.uniform(0.8, 1.2)
        self._sleep(wait_seconds)
        return wait_seconds
