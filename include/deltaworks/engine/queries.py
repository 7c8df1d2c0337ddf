"""Streaming queries in the driver: a listener for the ingest query, and functions that wait for and stop queries.

Spark calls the listeners of all queries in one thread, which waits for Python. So a callback never raises, and only
puts an event into a bounded queue.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from deltaworks.engine.progress import ProgressLog

log = logging.getLogger(__name__)


class IngestListener:
    """Spark listener for one query, selected by name; other queries of the session are ignored.

    It receives Spark's events directly through py4j. PySpark's own listener class converts every event to Python
    objects with about a hundred calls, an eighth of a small stream's driver time.

    Args:
        on_progress: receives Spark's progress as a dict.
        on_idle: called without arguments.
        on_terminated: receives the query's error, or None.
    """

    def __init__(
        self,
        query_name: str,
        *,
        on_progress: Callable[[dict[str, Any]], None],
        on_idle: Callable[[], None],
        on_terminated: Callable[[str | None], None],
    ) -> None:
        self._query_name = query_name
        self._run_id: str | None = None
        self._on_progress = on_progress
        self._on_idle = on_idle
        self._on_terminated = on_terminated
        self.failures = 0

    @cached_property
    def _jlistener(self) -> Any:
        """The Java listener; PySpark expects this attribute name."""
        from pyspark import SparkContext

        jvm: Any = SparkContext._jvm
        return jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Remembers the run id of the selected query, because later events have no query name."""
        with self._count_failures():
            if event.name() == self._query_name:
                self._run_id = event.runId().toString()

    def onQueryProgress(self, event: Any) -> None:
        """Passes the progress of the selected query to `on_progress`."""
        with self._count_failures():
            progress = event.progress()
            if progress.name() == self._query_name:
                self._on_progress(json.loads(progress.json()))

    def onQueryIdle(self, event: Any) -> None:
        """Calls `on_idle` if the selected query is idle."""
        with self._count_failures():
            if event.runId().toString() == self._run_id:
                self._on_idle()

    def onQueryTerminated(self, event: Any) -> None:
        """Passes the error of the selected query, or None, to `on_terminated`."""
        with self._count_failures():
            if event.runId().toString() == self._run_id:
                exception = event.exception()
                self._on_terminated(exception.get() if exception.isDefined() else None)

    @contextlib.contextmanager
    def _count_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # monitoring never affects the stream
            self.failures += 1

    class Java:
        """Declares for py4j the Java interface that this class implements."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def progress_listener(pipeline: str, progress: ProgressLog) -> IngestListener:
    """Returns a listener that records a pipeline's ingest query in its progress log."""
    return IngestListener(
        f"{pipeline}.ingest",
        on_progress=progress.add_spark_progress,
        on_idle=progress.add_idle,
        on_terminated=progress.add_termination,
    )


@contextlib.contextmanager
def listener_attached(spark: SparkSession, listener: IngestListener) -> Iterator[None]:
    """Attaches the listener to the session while the block runs. A failure to attach is only logged."""
    try:
        spark.streams.addListener(listener)  # type: ignore[arg-type]  # Spark needs only `_jlistener`
    except Exception as error:  # monitoring never affects the stream
        log.warning("could not attach the listener for streaming queries: %s", error)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            spark.streams.removeListener(listener)  # type: ignore[arg-type]


def wait_for_end(query: StreamingQuery, seconds: float) -> None:
    """Waits up to `seconds` for the query to end, as a query with trigger `availableNow` does."""
    try:
        query.awaitTermination(seconds)  # type: ignore[arg-type]  # Spark takes milliseconds of it
    except Exception:  # the query failed; the caller checks all queries for errors
        time.sleep(seconds)


def stop_quietly(query: StreamingQuery) -> None:
    """Stops the query; errors are only logged."""
    try:
        query.stop()
    except Exception as error:  # the run ends anyway, and the next one resumes its batch
        log.warning("query %s did not stop in time: %s", query.name, error)
