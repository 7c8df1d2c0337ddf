"""What a source says of itself and seldom changes, asked for now and then while a stream runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class LookedUp(Generic[_T]):
    """An answer that is kept for a while. None before the first; one that cannot be had leaves the last as it was.

    Not for several threads at once.
    """

    def __init__(self, look: Callable[[], _T | None], *, what: str, every_seconds: float = 600.0) -> None:
        self._look = look
        self._what = what
        self._every = every_seconds
        self._due = 0.0
        self._found: _T | None = None

    def read(self) -> _T | None:
        """The newest answer. Never raises: a stream that may not ask is watched without."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            try:
                self._found = self._look()
            except Exception as error:
                log.info("%s is not known: %s", self._what, str(error).splitlines()[0] if str(error) else error)
        return self._found
