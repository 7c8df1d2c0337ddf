"""Runs a pipeline's stream with one owner at a time.

A run acquires the lease, opens and fences the tables, and completes a prepared batch. Then it starts the ingest query
and the live queries, and watches them until the stop flag, its time limit, a failure, a lost lease or a stalled batch.
No data is lost in any case: each batch resumes from its records. A failed run writes its error to the heartbeat.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.foreign_errors import redact_values
from deltaworks.control.health.heartbeat import HeartbeatWriter, StopFlag, was_killed
from deltaworks.control.health.throughput import ThroughputWriter
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.locks.lease import Lease, watch_lease
from deltaworks.control.objects import open_objects
from deltaworks.control.records.generations import Generations
from deltaworks.control.summaries.quarantine import QuarantineCounter
from deltaworks.control.summaries.rule_warnings import RuleWarningsCounter
from deltaworks.control.summaries.stream import StreamSummaryWriter
from deltaworks.engine.batches import BatchProcessor
from deltaworks.engine.driver_host import (
    CountingObjectStore,
    DriverHost,
    DriverMetrics,
    OwnDriver,
    fail_stalled_batch,
    run_limit_reason,
)
from deltaworks.engine.progress import BatchReport, ProgressLog
from deltaworks.engine.queries import listener_attached, progress_listener, stop_quietly, wait_for_end
from deltaworks.engine.recovery import check_spec, current_checkpoint, open_batch_processor, stream_lease
from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.sources.base import Source, SourceLag
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.live import LiveTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def progress_log(
    storage: StorageSpec, home: PipelineHome, spec: PipelineSpec, *, epoch: int, metrics: DriverMetrics
) -> ProgressLog:
    """Returns the progress log of one run of a pipeline's stream; the caller starts it.

    Raises:
        ContractError: GENERATIONS_UNREADABLE.
    """
    return ProgressLog(
        storage,
        spec.pipeline,
        owner_epoch=epoch,
        metrics=metrics,
        throughput=ThroughputWriter(home.objects, paths.throughput(home.control())),
        summary=StreamSummaryWriter(home.objects, spec.pipeline),
        quarantine=QuarantineCounter(
            home.objects, spec.pipeline, generation=home.generations.current(), spec=spec.fingerprint()
        ),
        rule_warnings=RuleWarningsCounter(
            home.objects,
            spec.pipeline,
            {table.name: [rule.name for rule in table.rules if rule.on_fail == "warn"] for table in spec.tables},
            generation=home.generations.current(),
        ),
    )


#: Matches the error line of a traceback: Spark returns Python tracebacks of its workers as text.
_ERROR_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): .+$", re.MULTILINE)
_MESSAGE_LENGTH: Final = 500


def failure_record(error: Exception) -> Mapping[str, Any]:
    """Returns the record of an error for the heartbeat.

    It has the error's condition, also if the error was raised in a Spark worker. An unknown error gets STREAM_FAILED
    with the last error line of its traceback, which is closest to the cause.
    """
    mapped = as_deltaworks_error(error)
    if mapped.condition != "JOB_FAILED":
        return mapped.as_record()
    text = redact_values(str(error))
    message = _ERROR_LINE.findall(text)[-1] if _ERROR_LINE.search(text) else text.strip() or type(error).__name__
    return {
        "condition": "STREAM_FAILED",
        "message": message[:_MESSAGE_LENGTH],
        "hint": "Read the driver log for the full traceback.",
    }


log = logging.getLogger(__name__)

#: Interval of reading the stop flag, which is a request, and of checking the queries.
POLL_SECONDS = 2.0
#: Interval of checking for table requests while no batch runs. A check takes one listing.
SERVE_SECONDS = 5.0
#: Maximum wait for keyed tables at the end of a run; the next run continues.
KEYED_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of a run: why it ended, and its totals of batches, rows and seconds."""

    ended_by: str
    batches: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """What a companion of a stream may use. With `available_now` the run ends once the available data is processed.

    `batch_committed` is set after each batch; one companion waits for it, and clears it.
    """

    spark: SparkSession
    catalog: Catalog
    spec: PipelineSpec
    lease: Lease
    heartbeat: HeartbeatWriter
    host: DriverHost
    available_now: bool
    batch_committed: threading.Event


class StartLiveQuery(Protocol):
    """Starts the query of one live table; raising in `before_merge` ends it."""

    def __call__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        pipeline: str,
        live: LiveTableSpec,
        *,
        before_merge: Callable[[], None],
    ) -> StreamingQuery: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamParts:
    """The parts of a stream that its job chooses, because the engine imports no kind of source and no other layer.

    Args:
        start_over_empty: starts a pipeline over whose tables never had a row; the stream holds the lease.
        companions: run while the queries do, each in a context manager that does nothing if nothing is declared.
    """

    open_source: Callable[[Catalog, PipelineSpec], Source]
    start_live_query: StartLiveQuery
    start_over_empty: Callable[[Catalog, str, Lease, SparkSession], None]
    companions: Sequence[Callable[[StreamContext], AbstractContextManager[None]]] = ()


class IngestRun:
    """One run of a pipeline's stream; `run` may be called once.

    Args:
        parts: the stream's source, live queries and companions.
        host: the driver process that hosts the run; by default one for this run only.
    """

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        pipeline: str,
        *,
        parts: StreamParts,
        available_now: bool = False,
        host: DriverHost | None = None,
    ) -> None:
        self._parts = parts
        self._host: DriverHost = host or OwnDriver()
        self._spark = spark
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._storage = catalog.environment.lake
        self._objects = CountingObjectStore(open_objects(self._storage))
        self._home = PipelineHome(self._objects, pipeline)
        self._source = parts.open_source(catalog, self._spec)
        self._available_now = available_now
        self._heartbeat = HeartbeatWriter(
            self._objects,
            paths.heartbeat(self._home.control()),
            pipeline=pipeline,
            trigger_seconds=self._spec.stream.trigger_seconds,
        )
        self._stop = StopFlag(self._objects, paths.stop_request(self._home.control()))
        self._batches = 0
        self._batch_committed = threading.Event()
        self._rows = 0
        self._quarantined_events = 0
        self._lost_files = 0
        self._lost_ranges = 0
        self._batch_started: float | None = None
        self._closing = False
        self._first_batch_completed_at: float | None = None
        self._failure: DeltaworksError | None = None
        self._predecessor_crashed = False

    def run(self) -> RunResult:
        """Streams until the run ends.

        Raises:
            ConcurrencyError: LEASE_HELD, another run owns the stream.
            FencedError: a successor has taken over.
            DeltaworksError: the failure, with its condition if known.
        """
        started = time.monotonic()
        lease = stream_lease(Lake(self._storage), PipelineHome(self._objects, self._spec.pipeline), self._spec)
        # Until this run has the lease, the heartbeat belongs to the lease's holder.
        epoch = lease.acquire(
            wait_seconds=self._spec.stream.lease_ttl_seconds * 3,
            should_give_up=lambda: self._host.stop_reason() is not None,
        )
        try:
            watch_lease(lease, lambda: self._lease_lost(lease))
            # Checked before the heartbeat is overwritten.
            self._predecessor_crashed = was_killed(self._objects, paths.heartbeat(self._home.control()))
            self._heartbeat.start()
            self._heartbeat.update(owner=lease.owner, epoch=epoch, ui=self._ui())
            ended_by = self._stream(lease, epoch)
        except Exception as error:
            self._heartbeat.close(state="failed", error=failure_record(error))
            raise
        finally:
            lease.release()
        self._heartbeat.close(state="ended")
        return RunResult(ended_by=ended_by, batches=self._batches, rows=self._rows, seconds=time.monotonic() - started)

    def _ui(self) -> str | None:
        url: str | None = self._spark.sparkContext.uiWebUrl
        return url

    @property
    def batches(self) -> int:
        """Number of batches processed so far."""
        return self._batches

    def _lease_lost(self, lease: Lease) -> None:
        self._host.on_lease_lost(lease.lost_error())

    def _stream(self, lease: Lease, epoch: int) -> str:
        if self._stop.read() is not None:
            # A DAG that is not paused starts the next run immediately: limits that to one per interval.
            time.sleep(self._host.stop_flag_delay_seconds)
            return "stop flag"
        if check_spec(Lake(self._storage), self._home, self._spec):
            self._parts.start_over_empty(self._catalog, self._spec.pipeline, lease, self._spark)
        measures = DriverMetrics(self._spark, self._objects)
        progress = progress_log(self._storage, self._home, self._spec, epoch=epoch, metrics=measures)
        progress.start()
        queries: list[StreamingQuery] = []
        specs = self._home.specs
        try:
            processor, ledger = open_batch_processor(
                self._spark,
                self._catalog,
                self._spec,
                self._objects,
                lease=lease,
                epoch=epoch,
                predecessor_crashed=self._predecessor_crashed,
            )
            # Completed before the checkpoint is chosen, because a new checkpoint must start after this batch.
            if (completed_batch := processor.complete_prepared()) is not None:
                self._record_batch(completed_batch, progress)
            # The prepared batch used the former spec; the next one uses this spec.
            specs.record_start(self._spec, owner_epoch=epoch)
            generations = current_checkpoint(self._home, ledger)
            processor.use_checkpoint(generations)
            with ExitStack() as companions:
                companions.enter_context(
                    listener_attached(self._spark, progress_listener(self._spec.pipeline, progress))
                )
                for companion in self._parts.companions:
                    companions.enter_context(companion(self._context(lease)))
                try:
                    queries = [self._start_ingest(processor, generations, progress), *self._start_live(lease)]
                    processor.keyed.start()
                    self._heartbeat.update(state="running")
                    return self._watch(queries, processor, progress)
                finally:
                    self._closing = True
                    self._host.await_batch(self._is_batch_running)
                    for query in queries:
                        stop_quietly(query)
                    self._host.on_queries_stopped(self._is_batch_running)
                    processor.keyed.close(wait_seconds=None if self._available_now else KEYED_CLOSE_SECONDS)
                    progress.await_termination()
        finally:
            progress.close()

    def _context(self, lease: Lease) -> StreamContext:
        return StreamContext(
            spark=self._spark,
            catalog=self._catalog,
            spec=self._spec,
            lease=lease,
            heartbeat=self._heartbeat,
            host=self._host,
            available_now=self._available_now,
            batch_committed=self._batch_committed,
        )

    def _start_ingest(
        self, processor: BatchProcessor, generations: Generations, progress: ProgressLog
    ) -> StreamingQuery:
        current = generations.current
        checkpoint = paths.checkpoint(self._spec.pipeline, generations.generation, current.ordinal)

        def mark_batch_started() -> None:
            self._batch_started = time.monotonic()

        def process_batch(batch: DataFrame, spark_batch_id: int) -> None:
            mark_batch_started()
            if self._closing:
                self._batch_started = None
                raise TransientError("QUERY_ENDED", "The run is ending. The next run processes this batch.")
            try:
                source = self._source.slice_of(
                    batch,
                    batch_id=processor.batch_id(spark_batch_id),
                    offsets=partial(processor.offset_range, spark_batch_id),
                )
                report = processor.process(source, spark_batch_id, on_job_start=mark_batch_started)
            except DeltaworksError as error:
                self._failure = error
                raise
            finally:
                self._batch_started = None
            if report is not None:
                self._record_batch(report, progress, spark_batch_id=spark_batch_id)
            self._first_batch_completed_at = self._first_batch_completed_at or time.monotonic()

        self._use_scheduler_pool("ingest")
        writer = (
            self._source.frame(self._spark, start=current.start)
            .writeStream.foreachBatch(process_batch)
            .queryName(f"{self._spec.pipeline}.ingest")
            .option("checkpointLocation", self._storage.spark_uri(checkpoint))
        )
        if self._available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._spec.stream.trigger_seconds} seconds").start()

    def _is_batch_running(self) -> bool:
        return self._batch_started is not None

    def _start_live(self, lease: Lease) -> list[StreamingQuery]:
        if self._available_now:
            return []
        self._use_scheduler_pool("live")

        def check_lease() -> None:
            if lease.is_lost:
                raise lease.lost_error()

        start = self._parts.start_live_query
        return [
            start(self._spark, self._catalog, self._spec.pipeline, live, before_merge=check_lease)
            for live in self._spec.aggregation_tables
        ]

    def _use_scheduler_pool(self, pool: str) -> None:
        """Sets the scheduler pool of queries started by this thread. Pools share cores fairly; within a pool it is
        FIFO.
        """
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._host.pool(pool))

    def _record_batch(self, report: BatchReport, progress: ProgressLog, *, spark_batch_id: int | None = None) -> None:
        self._batches += 1
        self._batch_committed.set()
        self._rows += report.rows
        self._quarantined_events += report.quarantined_events
        self._record_losses(report)
        progress.add(report, spark_batch_id=spark_batch_id)
        self._heartbeat.update(
            batch_id=report.batch_id, last_batch_at=iso_now(), rows=self._rows, quarantined=self._quarantined_events
        )
        log.warning(
            "pipeline=%s batch=%d rows=%d quarantined=%d files=%d tables=%d resumed=%s prepare_s=%.2f commit_s=%.2f",
            self._spec.pipeline,
            report.batch_id,
            report.rows,
            report.quarantined,
            report.files_read,
            report.tables,
            report.resumed,
            report.prepare_seconds,
            report.commit_seconds,
        )

    def _record_losses(self, report: BatchReport) -> None:
        """Reports data that was deleted before it could be read, in the heartbeat and the log."""
        if not (report.objects_missing or report.ranges_lost):
            return
        self._lost_files += report.objects_missing
        self._lost_ranges += report.ranges_lost
        self._heartbeat.update(
            lost_files=self._lost_files, lost_ranges=self._lost_ranges, lost_examples=report.missing_examples
        )
        log.warning("pipeline=%s lost before they were read: %s", self._spec.pipeline, report.missing_examples)

    def _watch(self, queries: list[StreamingQuery], processor: BatchProcessor, progress: ProgressLog) -> str:
        started = served = time.monotonic()
        lag = SourceLag(self._source)
        while True:
            for query in queries:
                if not query.isActive:
                    return self._query_ended(query)
            now = time.monotonic()
            if self._stop.read() is not None:
                return self._begin_stop("stop flag")
            run_limit = run_limit_reason(
                self._host, self._spec, now, started=started, first_batch=self._first_batch_completed_at
            )
            if (reason := self._host.stop_reason() or run_limit) is not None:
                return self._begin_stop(reason)
            fail_stalled_batch(
                self._spec.pipeline,
                self._batch_started,
                now,
                stall_seconds=self._spec.stream.stall_seconds,
                heartbeat=self._heartbeat,
                host=self._host,
            )
            if now - served >= SERVE_SECONDS:
                served = now
                self._serve_requests(processor)
            backlog = lag.read(queries[0], is_planned=self._batches > 0 or self._is_batch_running())
            progress.set_backlog(backlog)
            self._heartbeat.update(state="running" if self._batch_started else "idle", **backlog)
            wait_for_end(queries[0], POLL_SECONDS)

    def _serve_requests(self, processor: BatchProcessor) -> None:
        """Serves write turns and resume requests while no batch runs."""
        try:
            processor.serve_requests()
        except FencedError:
            raise
        except Exception as error:  # the next check retries
            log.warning("pipeline=%s requests could not be served: %s", self._spec.pipeline, error)
        self._heartbeat.update(held=tuple(held.summary() for held in processor.held))

    def _begin_stop(self, reason: str) -> str:
        self._heartbeat.update(state="stopping")
        return reason

    def _query_ended(self, query: StreamingQuery) -> str:
        failure = query.exception()
        if failure is None and self._available_now:
            return "available now"
        if self._failure is not None:
            raise self._failure
        if failure is not None:
            raise failure
        raise TransientError("QUERY_ENDED", f"The query {query.name!r} ended without an error.")
