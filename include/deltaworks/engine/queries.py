"""A stream's queries as its driver sees them: listening to the ingest query, waiting for the end of one, stopping it.

Spark calls listeners on one thread for all queries of a session, which waits for Python. So a call does no more than
put a text into a queue that may be full, and swallows whatever goes wrong.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from deltaworks.engine.progress import ProgressLog

log = logging.getLogger(__name__)


class IngestListener(StreamingQueryListener):
    """Listens to one query by its name; others of the session are passed over.

    Args:
        on_progress, on_idle, on_terminated: take an event in no time. They get Spark's progress as plain data, nothing,
            and the error that ended the query (None where it ended without one).
    """

    def __init__(
        self,
        query_name: str,
        *,
        on_progress: Callable[[dict[str, Any]], None],
        on_idle: Callable[[], None],
        on_terminated: Callable[[str | None], None],
    ) -> None:
        super().__init__()
        self._query_name = query_name
        self._run_id: str | None = None
        self._on_progress = on_progress
        self._on_idle = on_idle
        self._on_terminated = on_terminated
        self.failures = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if event.name == self._query_name:
            self._run_id = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.name == self._query_name:
            self._guarded(lambda: self._on_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if str(event.runId) == self._run_id:
            self._guarded(self._on_idle)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.runId) == self._run_id:
            self._guarded(lambda: self._on_terminated(event.exception))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # watching never disturbs what is watched
            self.failures += 1


def listener_of(pipeline: str, progress: ProgressLog) -> IngestListener:
    """What notes the events of a pipeline's ingest query in its progress."""
    return IngestListener(
        f"{pipeline}.ingest",
        on_progress=progress.spark_progress,
        on_idle=progress.idle,
        on_terminated=progress.terminated,
    )


@contextlib.contextmanager
def listening(spark: SparkSession, listener: IngestListener) -> Iterator[None]:
    """Have the listener hear the session's queries while the block runs. A session that will not is gone without."""
    try:
        spark.streams.addListener(listener)
    except Exception as error:  # watching never disturbs what is watched
        log.warning("no listener on streaming queries: %s", error)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            spark.streams.removeListener(listener)


def wait_for_end(query: StreamingQuery, seconds: float) -> None:
    """Wait until the query has ended, and no longer than `seconds`: a run over what is there ends with its query."""
    try:
        query.awaitTermination(seconds)  # type: ignore[arg-type]  # Spark takes milliseconds of it
    except Exception:  # what a query failed with is looked at where all of them are
        time.sleep(seconds)


def stop_quietly(query: StreamingQuery) -> None:
    """Stop the query; an error is logged and no more."""
    try:
        query.stop()
    except Exception as error:  # the run is ending anyway; its batches resume
        log.warning("query %s did not stop in time: %s", query.name, error)
