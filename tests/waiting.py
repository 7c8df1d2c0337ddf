"""Waits for results of other threads or processes.

The deadline only ends a test that would hang. It makes no claim about speed, so it is far beyond what a slow machine
needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 120.0


def await_page(request: Callable[[], Any]) -> Any:
    """Repeats a request to the console while the answer says that the page follows in a moment, as browsers do."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = request()
        if not {"refresh", "retry-after"} & answer.headers.keys() or time.monotonic() > end:
            return answer
        time.sleep(0.2)


def eventually(condition: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Polls until a condition holds. A condition that is costly to check is checked a fourth of the time at most.

    Raises:
        AssertionError: it does not hold after `seconds`.
    """
    began = time.monotonic()
    deadline = began + seconds
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(min(max(0.02, 3 * (now - began)), 0.25))
        began = time.monotonic()
