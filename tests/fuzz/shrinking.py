"""Shrinks a failing input by removing pieces while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable


def shrunk(data: bytes, fails: Callable[[bytes], bool], *, seconds: float) -> bytes:
    """Returns the smallest input found that still fails; stops after `seconds`.

    Removes pieces of half the input first, then of a quarter, down to single bytes, and repeats while that helps.
    """
    until = time.monotonic() + seconds
    size = max(1, len(data) // 2)
    while data:
        smaller = _without_pieces(data, size, fails, until)
        if time.monotonic() >= until:
            return smaller
        if size > 1:
            size //= 2
        elif len(smaller) == len(data):
            return smaller
        data = smaller
    return data


def _without_pieces(data: bytes, size: int, fails: Callable[[bytes], bool], until: float) -> bytes:
    position = 0
    while position < len(data) and time.monotonic() < until:
        candidate = data[:position] + data[position + size :]
        if fails(candidate):
            data = candidate
        else:
            position += size
    return data
