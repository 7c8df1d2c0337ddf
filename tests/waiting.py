"""Waits for results of other threads or processes.

The deadline only ends a test that would hang. It makes no claim about speed, so it is far beyond what a slow machine
needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0


def eventually(condition: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Polls until a condition holds.

    Raises:
        AssertionError: it does not hold after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)
