"""How far a stream is behind the file event log it reads, for its heartbeat."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from deltaworks.sources.file_events.log import FileEventLog
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

BACKLOG_SECONDS = 10.0


class Backlog:
    """How far behind the log a query is, read at most every BACKLOG_SECONDS."""

    def __init__(self, catalog: Catalog, pipeline: str) -> None:
        self._log = FileEventLog(Lake(catalog.environment.lake), catalog.pipeline(pipeline).source.relay)
        self._source = catalog.pipeline(pipeline).source
        self._read_at = 0.0
        self._found: dict[str, Any] = {}

    def read(self, query: StreamingQuery) -> dict[str, Any]:
        """Heartbeat fields; a log that cannot be read just now leaves them as they were."""
        if time.monotonic() - self._read_at < BACKLOG_SECONDS:
            return self._found
        self._read_at = time.monotonic()
        try:
            self._found = self._measure(_position(query))
        except Exception as error:  # watching never fails the stream
            log.warning("backlog not read: %s", error)
        return self._found

    def _measure(self, seq: int) -> dict[str, Any]:
        found = self._log.backlog(seq, bucket=self._source.bucket, prefix=self._source.prefix)
        return {
            "backlog_files": found.files,
            "backlog_bytes": found.bytes,
            "oldest_pending_at": found.oldest_at.isoformat() if found.oldest_at else None,
        }


def _position(query: StreamingQuery) -> int:
    """The seq a query has finished, from its last progress; 0 before the first."""
    progress = query.lastProgress
    if not progress or not progress["sources"]:
        return 0
    offset = progress["sources"][0]["endOffset"]
    if offset is None:
        return 0
    return int((json.loads(offset) if isinstance(offset, str) else offset)["seq"])
