"""How tests wait for something another thread or process does: for as long as it takes, and no longer.

A deadline is there to end a test that would hang. It is no claim about speed, so it is far beyond what the slowest
machine needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0


def eventually(condition: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it does not, after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)
