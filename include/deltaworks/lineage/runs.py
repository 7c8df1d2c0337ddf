"""Lineage runs of streams, gold builds and mutations, from start to end, and the thread that sends their events.

Each run is a context manager. The block runs in the same way with and without lineage. Events wait in a bounded queue;
one thread creates them (importing OpenLineage, parsing SQL, reading a table) and sends them. If the backend is
unavailable or slow, events are dropped and counted, and the job is not affected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.control.clock import iso_now
from deltaworks.control.foreign_errors import redact_values
from deltaworks.lineage.datasets import (
    Dataset,
    distinct_datasets,
    mutation_inputs,
    mutation_outputs,
    stream_inputs,
    stream_outputs,
)
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import LineageSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: Capacity of the queue. Entries are small, because events are created when they are taken from the queue.
CAPACITY = 100
#: Function that creates an event. It is called in the emitter's thread.
EventFactory = Callable[[], Any]


@dataclass(slots=True)
class EventCounts:
    """Numbers of events: sent, failed (to create or to send), and dropped because the queue was full."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Emitter:
    """Sends events in order. `emit` is thread-safe and returns immediately.

    Args:
        open_sender: returns a function that sends one event; called in the thread before the first event.
        capacity: maximum number of queued events; further events are dropped.
    """

    def __init__(self, open_sender: Callable[[], Callable[[Any], None]], *, capacity: int = CAPACITY) -> None:
        self._open_sender = open_sender
        self._queue: queue.Queue[EventFactory | None] = queue.Queue(capacity)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.counts = EventCounts()
        # A daemon thread, so that the process can exit.
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def emit(self, create_event: EventFactory) -> None:
        """Queues an event, or drops it if the queue is full."""
        try:
            self._queue.put_nowait(create_event)
        except queue.Full:
            self._count("dropped")

    def close(self, *, seconds: float) -> EventCounts:
        """Sends queued events for at most this time, drops the remaining ones, and logs the number of lost events."""
        deadline = time.monotonic() + seconds
        self._closing.set()
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._thread.is_alive():
                self.counts.dropped += sum(1 for create_event in self._queue.queue if create_event is not None) + 1
            lost = self.counts.failed + self.counts.dropped
            if lost:
                log.warning(
                    "lineage: %d events sent, %d failed, %d dropped: the backend is unavailable or too slow",
                    self.counts.sent,
                    self.counts.failed,
                    self.counts.dropped,
                )
            return replace(self.counts)

    def _run(self) -> None:
        send: Callable[[Any], None] | None = None
        while (create_event := self._queue.get()) is not None:
            try:
                send = send or self._open_sender()
                send(create_event())
                self._count("sent")
            except Exception as error:  # lineage must not fail the job
                self._count("failed")
                # Warn once: an unavailable backend would fill the log.
                log.log(logging.WARNING if self.counts.failed == 1 else logging.DEBUG, "lineage: %s", error)

    def _count(self, outcome: str) -> None:
        with self._lock:
            setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)


#: `namespace/job/run id` of the Airflow task, set by its OpenLineage provider.
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
#: Maximum time that a job waits at its end for unsent events.
CLOSE_SECONDS = 5.0
_ERROR_LENGTH = 2_000
#: Function that returns the datasets of a run, given its written tables with row counts.
Datasets = Callable[[Mapping[str, int | None]], Sequence[Dataset]]
#: Function that does the same for any pipeline.
PipelineDatasets = Callable[[Catalog, str, Mapping[str, int | None]], Sequence[Dataset]]
#: Kinds of batch jobs, which are also the suffix of job names: gold builds and mutation batches.
BatchJob = Literal["gold", "mutations"]


class WrittenTables:
    """The tables that a block has written so far, with row counts."""

    def __init__(self) -> None:
        self.tables: dict[str, int | None] = {}

    def add(self, table: str, rows: int | None = None) -> None:
        """Records a written table and its row count."""
        previous = self.tables.get(table)
        self.tables[table] = rows if previous is None else previous + (rows or 0)


@dataclass(slots=True)
class LineageRun:
    """A run of one job. Its events contain the tables written so far, and are created in the emitter's thread."""

    spec: LineageSpec
    emitter: Emitter
    job: str
    kind: str
    inputs: Datasets
    outputs: Datasets
    written: WrittenTables = field(default_factory=WrittenTables)
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _reported_at: float = field(default_factory=time.monotonic)
    _ended: bool = False

    def emit(self, state: str, *, error: str = "") -> None:
        """Queues an event of the run."""
        self._ended = state in ("COMPLETE", "FAIL")
        at, written = iso_now(), dict(self.written.tables)
        parent = os.environ.get(PARENT_VARIABLE, "")

        def create_event() -> Any:
            from deltaworks.lineage.events import build_event

            return build_event(
                state,
                at=at,
                run_id=self.run_id,
                namespace=self.spec.namespace,
                job=self.job,
                kind=self.kind,
                inputs=list(distinct_datasets(self.inputs(written))),
                outputs=list(distinct_datasets(self.outputs(written))),
                parent=parent,
                error=error,
            )

        self.emitter.emit(create_event)

    def emit_running(self) -> None:
        """Queues a RUNNING event, at most once per interval and not after the end."""
        now = time.monotonic()
        if not self._ended and now - self._reported_at >= self.spec.every_seconds:
            self._reported_at = now
            self.emit("RUNNING")


@contextlib.contextmanager
def _open_emitter(spec: LineageSpec) -> Iterator[Emitter]:
    def open_sender() -> Callable[[Any], None]:
        from deltaworks.lineage.events import open_client

        return open_client(spec)

    emitter = Emitter(open_sender)
    try:
        yield emitter
    finally:
        emitter.close(seconds=CLOSE_SECONDS)


@contextlib.contextmanager
def _reported(runs: Sequence[LineageRun]) -> Iterator[None]:
    for run in runs:
        run.emit("START")
    try:
        yield
    except BaseException as error:
        for run in runs:
            run.emit("FAIL", error=redact_values(f"{type(error).__name__}: {error}")[:_ERROR_LENGTH])
        raise
    for run in runs:
        run.emit("COMPLETE")


@contextlib.contextmanager
def stream_lineage(spark: SparkSession, catalog: Catalog, pipelines: Sequence[str]) -> Iterator[None]:
    """Emits the runs of streams while the block runs them: start, progress and end.

    Does nothing if the environment declares no lineage.

    Args:
        pipelines: one, or the members of a group.
    """
    spec = catalog.environment.lineage
    if spec is None:
        yield
        return
    from deltaworks.engine.queries import IngestListener, listener_attached

    with _open_emitter(spec) as emitter, contextlib.ExitStack() as stack:
        runs = [_stream_run(spec, emitter, catalog, name) for name in pipelines]
        for name, run in zip(pipelines, runs, strict=True):
            listener = IngestListener(
                f"{name}.ingest",
                on_progress=lambda _progress, run=run: run.emit_running(),  # type: ignore[misc]
                on_idle=lambda: None,
                on_terminated=lambda _error: None,
            )
            stack.enter_context(listener_attached(spark, listener))
        stack.enter_context(_reported(runs))
        yield


def _stream_run(spec: LineageSpec, emitter: Emitter, catalog: Catalog, name: str) -> LineageRun:
    pipeline = catalog.pipeline(name)
    return LineageRun(
        spec,
        emitter,
        f"{name}.stream",
        "STREAMING",
        inputs=lambda _: stream_inputs(catalog, pipeline),
        outputs=lambda _: stream_outputs(catalog, pipeline),
    )


@contextlib.contextmanager
def batch_lineage(catalog: Catalog, pipeline: str, job: BatchJob) -> Iterator[WrittenTables]:
    """Emits the run of a batch job: its start, and at its end the written tables with column origins.

    Does nothing if the environment declares no lineage.
    """
    spec = catalog.environment.lineage
    if spec is None:
        yield WrittenTables()
        return
    inputs, outputs = _datasets_of(job)
    with _open_emitter(spec) as emitter:
        run = LineageRun(
            spec,
            emitter,
            f"{pipeline}.{job}",
            "BATCH",
            inputs=lambda written: inputs(catalog, pipeline, written),
            outputs=lambda written: outputs(catalog, pipeline, written),
        )
        with _reported([run]):
            yield run.written


def _datasets_of(job: BatchJob) -> tuple[PipelineDatasets, PipelineDatasets]:
    """Returns the functions for a job's inputs and outputs."""
    if job == "mutations":
        return mutation_inputs, mutation_outputs
    # Imported lazily: it imports the table reader.
    from deltaworks.lineage.datasets import gold_inputs, gold_outputs

    return gold_inputs, gold_outputs
