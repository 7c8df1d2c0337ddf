"""How far a stream is behind its source, for its heartbeat."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from deltaworks.sources.registry import BatchSource

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

BACKLOG_SECONDS = 10.0


class Backlog:
    """How far behind its source a query is, looked at every BACKLOG_SECONDS at most."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._read_at = 0.0
        self._found: dict[str, Any] = {}

    def read(self, query: StreamingQuery) -> dict[str, Any]:
        """Heartbeat fields; a source that cannot be asked just now leaves them as they were."""
        if time.monotonic() - self._read_at < BACKLOG_SECONDS:
            return self._found
        self._read_at = time.monotonic()
        try:
            progress = query.lastProgress
            self._found = self._source.backlog(progress["sources"][0] if progress and progress["sources"] else None)
        except Exception as error:  # watching never fails the stream
            log.warning("backlog not read: %s", error)
        return self._found
