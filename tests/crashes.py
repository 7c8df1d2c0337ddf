"""Simulates the end of a process at a named point."""

from __future__ import annotations

from collections.abc import Callable


class Crash(Exception):
    """Simulates the end of the process."""


def crash_at(point: str) -> Callable[[str], None]:
    """Returns a fault that ends the process at `point`."""

    def fault(reached: str) -> None:
        if reached == point:
            raise Crash(point)

    return fault
