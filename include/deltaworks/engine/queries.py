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
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from deltaworks.engine.progress import ProgressLog

log = logging.getLogger(__name__)


class IngestListener:
    """Listens to one query by its name; others of the session are passed over.

    It takes Spark's events as py4j hands them over. PySpark's own listener makes Python objects of all that is in an
    event, by some hundred calls and a look for a class in all jars: an eighth of what a small stream's driver does.

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
        self._query_name = query_name
        self._run_id: str | None = None
        self._on_progress = on_progress
        self._on_idle = on_idle
        self._on_terminated = on_terminated
        self.failures = 0

    @cached_property
    def _jlistener(self) -> Any:
        """The listener that Spark adds and removes, by the name under which PySpark asks for it."""
        from pyspark import SparkContext

        jvm: Any = SparkContext._jvm
        return jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Spark calls it; `event` is Java's."""
        with self._count_failures():
            if event.name() == self._query_name:
                self._run_id = event.runId().toString()

    def onQueryProgress(self, event: Any) -> None:
        """As above."""
        with self._count_failures():
            progress = event.progress()
            if progress.name() == self._query_name:
                self._on_progress(json.loads(progress.json()))

    def onQueryIdle(self, event: Any) -> None:
        """As above."""
        with self._count_failures():
            if event.runId().toString() == self._run_id:
                self._on_idle()

    def onQueryTerminated(self, event: Any) -> None:
        """As above."""
        with self._count_failures():
            if event.runId().toString() == self._run_id:
                exception = event.exception()
                self._on_terminated(exception.get() if exception.isDefined() else None)

    @contextlib.contextmanager
    def _count_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # watching never disturbs what is watched
            self.failures += 1

    class Java:
        """What py4j asks for."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def progress_listener(pipeline: str, progress: ProgressLog) -> IngestListener:
    """What notes the events of a pipeline's ingest query in its progress."""
    return IngestListener(
        f"{pipeline}.ingest",
        on_progress=progress.add_spark_progress,
        on_idle=progress.add_idle,
        on_terminated=progress.add_termination,
    )


@contextlib.contextmanager
def listener_attached(spark: SparkSession, listener: IngestListener) -> Iterator[None]:
    """Have the listener hear the session's queries while the block runs. A session that will not is gone without."""
    try:
        spark.streams.addListener(listener)  # type: ignore[arg-type]  # Spark asks for no more than `_jlistener`
    except Exception as error:  # watching never disturbs what is watched
        log.warning("no listener on streaming queries: %s", error)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            spark.streams.removeListener(listener)  # type: ignore[arg-type]


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
