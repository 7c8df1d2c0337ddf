"""Refreshes gold tables with a short `lag` from a thread in the stream's driver.

Starting a JVM per minute would cost more than the builds. A round begins as soon as a batch has been committed and
its `lag` has passed since the last one, so new events wait for no clock; without a batch it begins once a
minute, because other writers change inputs too. It reads the logs of the inputs, computes mergeable answers from new
rows (`gold.incremental`), and uses Spark only for the others, in its own session and scheduler pool.

The gold DAG or a former lease owner may build at the same time. Builds are numbered in the table, so only one of them
commits, and none overwrites results of newer inputs. A failing build is reported and retried with backoff, and stops
neither the loop nor the stream.

The loop uses the declaration at stream start. It does not build a table that another definition has built since then.

Between refreshes it compacts small files of the inputs. Each batch adds a file to the partition of a date, which
maintenance merges only at night. With batches every five seconds, a refresh late in the day would open thousands of
files. Only append-only event tables are compacted, and only while no job has requested or holds their write turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.errors import ConcurrencyError, DeltaworksError
from deltaworks.gold.incremental import IncrementalGold
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.pinned_inputs import read_built_from
from deltaworks.gold.table_build import GoldTableResult, TableJob
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import STREAM_LAG, GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.compaction import compact_partitions
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: Minimum number of small files for compacting a partition: about a minute of batches every few seconds.
MIN_FILES: Final = 16
#: Larger files are not rewritten again.
SMALL_FILE_BYTES: Final = 4 << 20
#: Maximum bytes merged per partition and run, oldest files first. They are held in memory of the stream's process.
MAX_MERGE_BYTES: Final = 16 << 20


class _CompactionDeferred(Exception):
    """The stream is stopping, or a job needs the table's write turn."""


def compactable_inputs(spec: PipelineSpec, tables: Sequence[GoldTableSpec]) -> Iterator[str]:
    """Yields the append-only event tables that these gold tables read."""
    reads = {name for table in tables for name in table.reads}
    yield from (table.name for table in spec.event_tables if table.name in reads and table.mutable is None)


def compact_inputs(
    lake: Lake,
    spec: PipelineSpec,
    tables: Sequence[GoldTableSpec],
    *,
    should_continue: Callable[[], bool] = lambda: True,
) -> int:
    """Compacts small files of the inputs of these gold tables. Returns the number of compacted partitions.

    Changes no row. Idempotent and safe with concurrent writers. Larger files are left to the nightly OPTIMIZE.

    Args:
        should_continue: whether this process may still commit; checked before each commit.

    Raises:
        TransientError: the storage is unreachable.
    """
    home, merged = PipelineHome.open(lake.storage, spec.pipeline), 0
    for name in compactable_inputs(spec, tables):
        turns = _WriteTurnCheck(home, name, should_continue)
        try:
            turns.check()
            outcome = compact_partitions(
                lake,
                lake.objects,
                paths.table(spec.pipeline, name),
                None,
                below_bytes=SMALL_FILE_BYTES,
                min_files=MIN_FILES,
                max_bytes=MAX_MERGE_BYTES,
                user_metadata=user_metadata(pipeline=spec.pipeline, batch="", operation=OPTIMIZE),
                before_commit=turns.check,
            )
        except _CompactionDeferred:
            continue
        merged += len(outcome.compacted)
        if outcome.compacted:
            log.info("pipeline=%s table=%s partitions_merged=%d", spec.pipeline, name, len(outcome.compacted))
    return merged


class _WriteTurnCheck:
    """Checks before each commit whether a table may be rewritten."""

    def __init__(self, home: PipelineHome, table: str, should_continue: Callable[[], bool]) -> None:
        self._home, self._table, self._should_continue = home, table, should_continue

    def check(self) -> None:
        """Raises `_CompactionDeferred` if the process is stopping, or if a job holds or has requested the table's write
        turn.
        """
        stored = self._home.objects.get(paths.turn_request(self._home.pipeline, self._table))
        turn = TurnRecord.decode_or_none(stored.data) if stored is not None else None
        if not self._should_continue() or (turn is not None and not turn.is_over):
            raise _CompactionDeferred(self._table)


#: Upper bound of the backoff of a failing table.
MAX_BACKOFF_SECONDS = 900.0
#: Interval of rounds while the stream commits no batch.
QUIET_SECONDS = 60.0
#: Interval at which a waiting thread sees that the loop is closed.
_CLOSE_CHECK_SECONDS = 0.5
#: Interval of compacting inputs. It is long because finding small files lists all files of a table.
COMPACTION_INTERVAL_SECONDS = 30.0
#: A table counts as failing after this many consecutive conflicts with other builds.
MAX_OVERTAKEN_BUILDS = 3


class GoldRefreshLoop:
    """Refreshes a pipeline's gold tables while its stream runs. Call `start` and `close` once each, from one thread.

    Args:
        pool: the scheduler pool of its Spark jobs.
        holds_lease: whether the stream still holds its lease; no build starts without the lease.
        committed: set by the stream after each batch; the loop clears it.
        report_failures: called in the loop's thread whenever the failing tables change. It receives condition, message,
            hint, number of failures and start time of each failing table.
    """

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        pipeline: str,
        *,
        pool: str,
        holds_lease: Callable[[], bool],
        committed: threading.Event,
        report_failures: Callable[[tuple[Mapping[str, Any], ...]], None],
    ) -> None:
        self._spark, self._catalog, self._pipeline, self._pool = spark, catalog, pipeline, pool
        self._holds_lease, self._committed, self._report_failures = holds_lease, committed, report_failures
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._incremental = IncrementalGold(self._lake, self._spec)
        self._job_group = f"gold.{pipeline}"
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_refresh_at = dict.fromkeys((table.name for table in self._spec.gold.stream_refreshed_tables), 0.0)
        self._failures: dict[str, dict[str, Any]] = {}
        self._overtaken_counts: dict[str, int] = {}
        self._next_compaction_at = time.monotonic() + COMPACTION_INTERVAL_SECONDS
        #: Fingerprints of tables that this loop has built.
        self._own_fingerprints: dict[str, str] = {}

    def start(self) -> None:
        """Starts the thread; every table is due immediately."""
        from pyspark import InheritableThread

        self._thread = InheritableThread(target=self._run)
        self._thread.name, self._thread.daemon = f"gold-{self._pipeline}", True
        self._thread.start()

    def close(self, *, wait_seconds: float) -> None:
        """Stops the loop: cancels the running build and waits for its end. An unfinished build commits nothing."""
        self._closing.set()
        if self._thread is None:
            return
        deadline = time.monotonic() + wait_seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Repeated, because a build starts several jobs.
            self._cancel_jobs()
            self._thread.join(timeout=0.5)

    def _cancel_jobs(self) -> None:
        try:
            self._spark.sparkContext.cancelJobGroup(self._job_group)
        except Exception as error:  # Spark may be shutting down already
            log.warning("pipeline=%s gold: jobs could not be cancelled: %s", self._pipeline, error)

    def _run(self) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", self._pool)
        context.setJobGroup(self._job_group, f"gold of {self._pipeline}", interruptOnCancel=False)
        session = self._spark.newSession()
        while not self._closing.is_set():
            if not self._holds_lease():
                log.warning("pipeline=%s gold is left to the owner of the lease", self._pipeline)
                return
            self._committed.clear()
            self.refresh_due_tables(session)
            self._wait()

    def _wait(self) -> None:
        """Waits until a table is due, and then for a batch, unless a failed build is to be repeated."""
        due_at = min(self._next_refresh_at.values())
        self._closing.wait(max(0.1, due_at - time.monotonic()))
        quiet_until = time.monotonic() + (0.0 if self._failures else QUIET_SECONDS)
        while not self._closing.is_set() and time.monotonic() < quiet_until:
            if self._committed.wait(_CLOSE_CHECK_SECONDS):
                return

    def refresh_due_tables(self, session: SparkSession) -> None:
        """Refreshes all due tables in dependency order, over the same pinned inputs. Does not raise build errors."""
        from deltaworks.gold.build import rebuild_gold

        due = [
            table
            for table in self._spec.gold.stream_refreshed_tables
            if self._next_refresh_at[table.name] <= time.monotonic()
        ]
        if self._closing.is_set() or not due:
            return
        started = time.monotonic()
        ready = [table for table in due if self._refresh_external_inputs(table)]
        try:
            if ready:
                rebuild_gold(
                    session,
                    self._catalog,
                    self._pipeline,
                    tables=[table.name for table in ready],
                    listener=self,
                    incremental=self._incremental,
                )
        except Exception as error:
            for table in ready:
                self.on_failed(table, error)
        ended = time.monotonic()
        for table in due:
            failures = int(self._failures.get(table.name, {}).get("failures", 0))
            lag = self._spec.gold.lag_of(table.name) or STREAM_LAG
            wait_seconds = next_wait_seconds(lag.total_seconds(), failures, built_seconds=ended - started)
            self._next_refresh_at[table.name] = ended + wait_seconds
        self._compact_inputs()

    def _compact_inputs(self) -> None:
        """Compacts small files of the inputs. A failure is only logged, since it only makes builds slower."""
        if self._next_compaction_at > time.monotonic():
            return
        try:
            compact_inputs(
                self._lake, self._spec, self._spec.gold.stream_refreshed_tables, should_continue=self._should_continue
            )
        except Exception as error:
            log.warning("pipeline=%s small files of gold's inputs were not merged: %s", self._pipeline, error)
        self._next_compaction_at = time.monotonic() + COMPACTION_INTERVAL_SECONDS

    def _should_continue(self) -> bool:
        return not self._closing.is_set() and self._holds_lease()

    def _refresh_external_inputs(self, table: GoldTableSpec) -> bool:
        """Refreshes the reference tables and models a table reads; False if that failed."""
        try:
            refresh_external_inputs(self._catalog, self._pipeline, names=list(table.reads))
        except Exception as error:
            self.on_failed(table, error)
            return False
        return True

    def skip_reason(self, job: TableJob) -> str:
        """Returns why this loop must not build a table; empty to build it."""
        if not self._should_continue():
            return "the stream ends"
        return (
            "another definition has built it" if self._was_built_by_other_definition(job.plan.table.name, job) else ""
        )

    def on_built(self, job: TableJob, result: GoldTableResult) -> None:
        """Records that a table was built or is up to date."""
        name = job.plan.table.name
        if job.built_from and result.skipped != job.plan.has_work:
            self._own_fingerprints[name] = job.fingerprint
        if not result.skipped:
            log.info("pipeline=%s table=%s version=%s rows=%d", self._pipeline, name, result.version, result.rows)
        self._record_success(name)

    def on_failed(self, table: GoldTableSpec, error: Exception) -> None:
        """Records a failed build, unless it was cancelled by the end of the stream."""
        if not self._closing.is_set():
            self._record_failure(table, as_deltaworks_error(error))

    def _was_built_by_other_definition(self, name: str, job: TableJob) -> bool:
        """Whether another definition has built a table of this loop. Building it here would alternate between both
        definitions.
        """
        built = read_built_from(self._lake, job.key)
        return (
            built.is_traceable
            and built.fingerprint != job.fingerprint
            and self._own_fingerprints.get(name) == job.fingerprint
        )

    def _record_failure(self, table: GoldTableSpec, error: DeltaworksError) -> None:
        if isinstance(error, ConcurrencyError):
            # Another build committed first; the next round sees its result.
            self._overtaken_counts[table.name] = self._overtaken_counts.get(table.name, 0) + 1
            if self._overtaken_counts[table.name] < MAX_OVERTAKEN_BUILDS:
                return
        log.warning("pipeline=%s table=%s could not be built: %s", self._pipeline, table.name, error)
        before = self._failures.get(table.name, {})
        self._failures[table.name] = {
            "table": table.name,
            "condition": error.condition,
            "message": error.message[:500],
            "hint": error.hint,
            "failures": int(before.get("failures", 0)) + 1,
            "since": before.get("since") or iso_now(),
        }
        self._report_failures(tuple(self._failures.values()))

    def _record_success(self, name: str) -> None:
        self._overtaken_counts.pop(name, None)
        if self._failures.pop(name, None) is not None:
            self._report_failures(tuple(self._failures.values()))


def next_wait_seconds(lag_seconds: float, failures: int, *, built_seconds: float = 0.0) -> float:
    """Returns the seconds to wait after a round that took `built_seconds`.

    Rounds start every `lag_seconds`. After a round longer than two thirds of this interval, the wait is half the
    round's duration, so that long builds leave resources to the stream. After consecutive failures the wait doubles
    each time, up to MAX_BACKOFF_SECONDS.
    """
    if not failures:
        return min(lag_seconds, max(lag_seconds - built_seconds, built_seconds / 2))
    return max(lag_seconds, min(lag_seconds * 2.0 ** min(failures, 16), MAX_BACKOFF_SECONDS))
