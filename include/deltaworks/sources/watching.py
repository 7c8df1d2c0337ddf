"""What is read of a source beside its records while a stream runs: how far behind it is, and what seldom changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deltaworks.sources.base import Source

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
_T = TypeVar("_T")

LAG_SECONDS = 10.0


class SourceLag:
    """How far behind its source a query is, read every LAG_SECONDS at most. Not for several threads at once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read_at = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, query: StreamingQuery) -> dict[str, Any]:
        """Heartbeat fields. Never raises: while the source does not answer, they stay as they were."""
        if time.monotonic() - self._read_at < LAG_SECONDS:
            return self._fields
        self._read_at = time.monotonic()
        try:
            progress = query.lastProgress
            self._fields = self._source.backlog(progress["sources"][0] if progress and progress["sources"] else None)
        except Exception as error:  # watching never fails the stream
            log.warning("backlog not read: %s", error)
        return self._fields


class CachedLookup(Generic[_T]):
    """An answer that is kept for a while. None before the first; a lookup that fails leaves the last answer.

    Not for several threads at once.
    """

    def __init__(self, lookup: Callable[[], _T | None], *, what: str, every_seconds: float = 600.0) -> None:
        self._lookup = lookup
        self._what = what
        self._every_seconds = every_seconds
        self._due_at = 0.0
        self._answer: _T | None = None

    def read(self) -> _T | None:
        """The newest answer. Never raises: a stream that may not ask is watched without."""
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + self._every_seconds
            try:
                self._answer = self._lookup()
            except Exception as error:
                log.info("%s is not known: %s", self._what, str(error).splitlines()[0] if str(error) else error)
        return self._answer
