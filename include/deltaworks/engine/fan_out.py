"""Writes the files of all tables of a batch in one Spark pass.

Each task reads some of the payloads, parses them, buffers the rows of every table, and writes one file per table and
partition, and the archive of its payloads if declared. It returns only the files with their statistics. Nothing is
committed here; archive files are committed with the batch like data files. Files of crashed or repeated tasks are
referenced by no commit, and maintenance removes them as orphans.

Python code that is stuck in a native library cannot stop itself. So the kernel limits a task's memory, and a watchdog
thread that works without Python's interpreter lock limits the time per payload. Exceeding a limit is either an error
attributed to an event, or a crash of the Python worker; the reader of the batch handles both. If a library crashes even
on a known good payload, the worker is broken, and no object is blamed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import logging
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.engine.duplicates import CrossTaskDuplicates, DuplicateFlagger, DuplicateWindow
from deltaworks.engine.notifications import with_notifications
from deltaworks.engine.writers import FILE_BYTES, FLUSH_BYTES, FileTarget, TableWriters, check_writable
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.events.archive import ARCHIVE_PARTITION, RecordsToColumns, archive_rows
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.evolution import EvolvedColumns, merge_evolved, new_columns
from deltaworks.events.parse import NO_PARSER_INPUTS, ParserInputs
from deltaworks.events.reasons import QUARANTINE_PARTITION
from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.base import RecordSlice, Slice
from deltaworks.sources.task_isolation import TaskOutput, sort_by_task
from deltaworks.sources.worker_crashes import CrashIsolation, TaskFailed, crash_cause
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.specs.sources import SourceSpec
from deltaworks.tables.driver_collect import collect_json
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Limits of a task.

#: Minimum interval of resetting the watchdog, because a stream has millions of records.
_REARM_SECONDS = 0.5
_cached_baseline_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """Limits of one task. `memory_bytes` is in addition to the worker's memory before its first task."""

    payload_seconds: float
    memory_bytes: int

    @contextmanager
    def apply_to_task(self, payloads: Iterable[Payload]) -> Iterator[Iterable[Payload]]:
        """Applies the limits to a Spark task; iterate over the yielded payloads in the block. No effect in the
        driver."""
        from pyspark import TaskContext

        if TaskContext.get() is None:
            yield payloads
            return
        with self.enforced():
            yield self.with_timeout(payloads)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Applies the limits to this process while the block runs, for one task at a time. Memory is limited on Linux
        only.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        idle = _baseline_data_bytes()
        if idle is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (_min_limit(idle + self.memory_bytes, soft, hard), hard))
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def with_timeout(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """Yields the payloads and kills the process, with a traceback in its log, if one takes too long.

        The time after the last payload is limited too. Use it within `enforced`.
        """
        armed = 0.0
        remaining = iter(payloads)
        while True:
            now = time.monotonic()
            if now - armed >= _REARM_SECONDS:
                faulthandler.dump_traceback_later(self.payload_seconds, exit=True)
                armed = now
            try:
                payload = next(remaining)
            except StopIteration:
                faulthandler.dump_traceback_later(self.payload_seconds, exit=True)
                return
            yield payload


def _min_limit(limit_bytes: int, *limits: int) -> int:
    return min([limit_bytes, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def _baseline_data_bytes() -> int | None:
    """Returns the memory of a worker before its first task. Cached, because workers are reused by later batches."""
    global _cached_baseline_bytes  # noqa: PLW0603 - of this process
    if _cached_baseline_bytes is None:
        status = Path("/proc/self/status")
        if not status.exists():
            return None
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        _cached_baseline_bytes = int(line.split()[1]) << 10
    return _cached_baseline_bytes


# The probe of a Python worker.

#: Timeout of the probe. A healthy worker needs milliseconds plus its start time.
PROBE_SECONDS = 60.0
_PROBE_KEY = "probe"


def probe_payload(source: SourceSpec) -> bytes:
    """Returns a small payload with one event in the source's format."""
    return _PROBE_PAYLOADS[source.format](source)


def _csv_probe(source: Any) -> bytes:
    rows = [source.csv.columns or (_PROBE_KEY,), (_PROBE_KEY,) * len(source.csv.columns or (_PROBE_KEY,))]
    return "".join(f"{source.csv.delimiter.join(row)}\n" for row in rows[not source.csv.header :]).encode()


def _tsv_probe(source: Any) -> bytes:
    names = source.tsv.columns or (_PROBE_KEY,)
    return f"#Fields: {' '.join(names)}\n{chr(9).join(_PROBE_KEY for _ in names)}\n".encode()


def _parquet_probe(source: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({_PROBE_KEY: [_PROBE_KEY]}), sink)
    return sink.getvalue()


def _avro_probe(source: Any) -> bytes:
    import fastavro

    sink = io.BytesIO()
    schema = {"type": "record", "name": _PROBE_KEY, "fields": [{"name": _PROBE_KEY, "type": "string"}]}
    fastavro.writer(sink, fastavro.parse_schema(schema), [{_PROBE_KEY: _PROBE_KEY}])
    return sink.getvalue()


_PROBE_PAYLOADS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda source: b'{"probe": "probe"}',
    "csv": _csv_probe,
    "tsv": _tsv_probe,
    "text": lambda source: b"probe\n",
    "parquet": _parquet_probe,
    "avro": _avro_probe,
}


def probe_worker(spark: SparkSession, spec: PipelineSpec, read: Callable[[Iterable[Payload]], Any]) -> None:
    """Runs one Spark task that parses the probe payload and discards the rows.

    The payload is created in the task too, so that a broken library cannot crash the driver.

    Args:
        read: parses payloads like a task of a batch; an exception from it does not count as a crash.

    Raises:
        Exception: Spark's error if the task crashed.
    """
    declared = spec.model_dump_json()

    def run_probe(numbers: Iterable[int]) -> Iterator[int]:
        source = PipelineSpec.model_validate_json(declared).source
        for number in numbers:
            with contextlib.suppress(Exception):  # An exception means that the worker did not crash.
                read([Payload(number, _PROBE_KEY, probe_payload(source))])
            yield number

    collect_json(spark.sparkContext.parallelize([0], 1).mapPartitions(run_probe))


# The pass over the payloads of a batch.


class ArchiveWriter:
    """Writes the raw records of one task to archive files. Used by one thread."""

    def __init__(self, target: FileTarget, stamp: BatchMetadata, to_archive: RecordsToColumns) -> None:
        self._writers = TableWriters(target)
        self._stamp = stamp
        self._to_archive = to_archive

    def archive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the given record batches; each is written to the archive before it is yielded for parsing."""
        for batch in batches:
            if batch.num_rows:
                self._writers.add(ARCHIVE, archive_rows(self._to_archive(batch), self._stamp))
            yield batch

    def files(self) -> dict[str, tuple[WrittenFile, ...]]:
        """Returns the archive files. Call it after all batches were read; earlier the list is incomplete."""
        self._writers.flush()
        files = tuple(file for _, file in self._writers.files)
        return {ARCHIVE: files} if files else {}


log = logging.getLogger(__name__)


@dataclass(slots=True)
class FanOutResult:
    """Result of a pass over a batch: each table's files in task order, and the merged task findings.

    The columns in `new_columns` must be added to their tables before the commit. The prepared batch stores `facts`.
    """

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    findings: TaskFindings = field(default_factory=TaskFindings)
    new_columns: EvolvedColumns = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Disables Python's garbage collector while the block runs.

    Parsed events have no reference cycles, and collections took more than a quarter of the parser's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def write_payloads(
    payloads: Iterable[Payload],
    spec: PipelineSpec,
    stamp: BatchMetadata,
    target: FileTarget,
    *,
    evolved: EvolvedColumns | None = None,
    inputs: ParserInputs = NO_PARSER_INPUTS,
    duplicates: Mapping[str, DuplicateWindow] | None = None,
    isolated: bool = False,
    flush_bytes: int = FLUSH_BYTES,
    file_bytes: int = FILE_BYTES,
) -> TaskOutput:
    """Parses the payloads of one task and writes the files of all tables.

    Errors that must stop the stream (bad configuration, unreachable storage) are returned as findings. If they were
    raised, Spark would retry the task and hide the cause from the driver.

    Args:
        isolated: attribute errors in rows to their events. All rows are then encoded twice.

    Raises:
        TaskFailed: rows cannot be written because of their content.
        OSError: the storage failed.
    """
    writers = TableWriters(target, flush_bytes=flush_bytes, file_bytes=file_bytes)
    validate_rows = partial(_check_rows_writable, spec, target) if isolated else None
    try:
        parser = inputs.create_parser(spec, evolved=evolved, validate_rows=validate_rows)
    except (ConfigError, TransientError) as error:  # a look-up database cannot be opened
        return TaskOutput(findings=TaskFindings(failure=error))
    flags = DuplicateFlagger(duplicates, target.filesystem()) if duplicates else None
    try:
        with _gc_paused():
            for table, rows in with_notifications(spec, parser.parse(payloads, stamp)):
                writers.add(table, flags.flag(table, rows) if flags else rows)
        writers.flush()
    except DeltaworksError as error:
        parser.findings.failure = error
    except (OSError, TaskFailed):
        raise
    except Exception as error:
        # The message goes to the driver's log, so it must not contain row values.
        raise TaskFailed(type(error).__name__) from None
    files: dict[str, list[WrittenFile]] = {}
    for table, file in writers.files:
        files.setdefault(table, []).append(file)
    return TaskOutput(
        files={table: tuple(table_files) for table, table_files in files.items()},
        findings=parser.findings,
        first_ids=flags.first_ids() if flags else {},
    )


def _check_rows_writable(spec: PipelineSpec, target: FileTarget, parts: Sequence[tuple[str, pa.Table]]) -> None:
    """Encodes the rows without writing them, and raises the error that writing would raise."""
    for table, rows in with_notifications(spec, parts):
        check_writable(target, table, rows)


def fan_out(
    spark: SparkSession,
    source: Slice,
    *,
    spec: PipelineSpec,
    stamp: BatchMetadata,
    target: FileTarget,
    evolved: EvolvedColumns | None = None,
    inputs: ParserInputs = NO_PARSER_INPUTS,
    duplicates: Mapping[str, DuplicateWindow] | None = None,
    isolation: CrashIsolation | None = None,
) -> FanOutResult:
    """Writes all tables of a batch in one Spark pass. After a worker crash the batch is re-read with one payload per
    task.

    Args:
        source: the batch's source slice.
        evolved: columns added to tables at runtime.
        inputs: pinned inputs of the parser, such as enrichment databases.
        duplicates: window files of tables that flag duplicates.
        isolation: how to re-read after worker crashes; None raises the crash to the caller.

    Raises:
        ContractError: the data violates a rule declared to stop the pipeline; nothing was committed.
        ConfigError: OBJECT_FORBIDDEN, WORKERS_CRASH, ENRICHMENT_UNREADABLE; nothing was committed.
        TransientError: TASKS_CRASH, STORAGE_UNREACHABLE, ENRICHMENT_REPLACED; nothing was committed.
    """
    run_task, run_probe = _task_functions(spec, stamp, target, evolved=evolved, inputs=inputs, duplicates=duplicates)
    if spec.archive is not None and isinstance(source, RecordSlice):
        source.enable_archive(partial(ArchiveWriter, target, stamp))
    if isolation is not None:
        isolation.probe = partial(probe_worker, spark, spec, run_probe)
    outputs = _run_tasks(source, spark, run_task, tasks=spec.stream.tasks_per_batch, isolation=isolation)
    written = merge_outputs(outputs, target, duplicates or {})
    if written.findings.failure is not None:
        raise written.findings.failure
    if written.findings.refusal is not None and not written.findings.any_read:
        raise written.findings.refusal
    return written


def _task_functions(
    spec: PipelineSpec,
    stamp: BatchMetadata,
    target: FileTarget,
    *,
    evolved: EvolvedColumns | None,
    inputs: ParserInputs,
    duplicates: Mapping[str, DuplicateWindow] | None,
) -> tuple[Callable[..., TaskOutput], Callable[[Iterable[Payload]], None]]:
    """Returns two task functions: one writes payloads, the other only probes whether they can be parsed and encoded."""
    # The spec is serialized as JSON, which stays readable in a task dump.
    declared = spec.model_dump_json()
    limits = TaskLimits(payload_seconds=spec.stream.object_timeout_seconds, memory_bytes=spec.stream.task_memory_bytes)
    probe_limits = replace(limits, payload_seconds=min(PROBE_SECONDS, limits.payload_seconds))

    def run_task(payloads: Iterable[Payload], *, isolated: bool = False) -> TaskOutput:
        pipeline = PipelineSpec.model_validate_json(declared)
        with limits.apply_to_task(payloads) as watched:
            return write_payloads(
                watched,
                pipeline,
                stamp,
                target,
                evolved=evolved,
                inputs=inputs,
                duplicates=duplicates,
                isolated=isolated,
            )

    def run_probe(payloads: Iterable[Payload]) -> None:
        pipeline = PipelineSpec.model_validate_json(declared)
        with probe_limits.apply_to_task(payloads) as watched:
            parser = inputs.create_parser(pipeline, evolved=evolved)
            for part in parser.parse(watched, stamp):
                _check_rows_writable(pipeline, target, [part])

    return run_task, run_probe


def _run_tasks(
    source: Slice,
    spark: SparkSession,
    run_task: Callable[..., TaskOutput],
    *,
    tasks: int,
    isolation: CrashIsolation | None,
) -> list[TaskOutput]:
    """Runs the pass over a batch; after a worker crash, re-reads the batch with one payload per task."""
    cause: str | None = None
    if isolation is None or not isolation.start_isolated:
        try:
            return source.read(spark, run_task, tasks=tasks)
        except Exception as error:
            cause = crash_cause(error)
            if isolation is None or cause is None:
                raise
            log.warning("a task crashed: %s; the batch is re-read, one payload per task", cause)
            # So that a second pass for new columns does not crash on the same payload again.
            isolation.start_isolated = True
    try:
        return source.read_isolated(spark, partial(run_task, isolated=True), tasks=tasks, isolation=isolation)
    except Exception as error:
        second_cause = crash_cause(error)
        if second_cause is None:
            raise
        # Spark reports only a task's last attempt.
        raise TransientError(
            "TASKS_CRASH", f"Tasks crash on a batch while no payload is open: {cause or second_cause}."
        ) from error


def merge_outputs(
    outputs: Iterable[TaskOutput], target: FileTarget, duplicates: Mapping[str, DuplicateWindow]
) -> FanOutResult:
    """Merges the outputs of all tasks; the result does not depend on their order.

    Duplicates across tasks are flagged here, by rewriting their files.
    """
    written, cross_task = FanOutResult(), CrossTaskDuplicates(target)
    skipped = {name: window.skipped_files for name, window in duplicates.items() if window.skipped_files}
    written.facts = {f"duplicates_left_out_{name}": files for name, files in skipped.items()}
    for output in sort_by_task(outputs):
        written.findings.merge(output.findings)
        for table, files in output.files.items():
            first_ids = output.first_ids.get(table)
            flagged_files = files if first_ids is None else cross_task.flag_duplicates(table, first_ids, files)
            written.files.setdefault(table, []).extend(flagged_files)
    return written


def write_with_new_columns(
    run_pass: Callable[[EvolvedColumns], FanOutResult], spec: PipelineSpec, evolved: EvolvedColumns
) -> FanOutResult:
    """Runs a pass. If it found fields that become new columns, runs a second pass that fills these columns.

    Args:
        run_pass: writes the batch, given all columns added at runtime.
        evolved: the columns added by earlier batches.
    """
    written = run_pass(evolved)
    added = new_columns(spec, evolved, written.findings.new_fields)
    if added:
        # No commit references the first pass's files; maintenance removes them as orphans.
        written = run_pass(merge_evolved(evolved, added))
        written.new_columns = added
    return written


def partition_columns(spec: PipelineSpec) -> dict[str, tuple[str, ...]]:
    """Returns the partition columns of every bronze table, quarantine and the archive."""
    archive = {} if spec.archive is None else {ARCHIVE: ARCHIVE_PARTITION}
    return {table.name: table.partition_by for table in spec.tables} | {"quarantine": QUARANTINE_PARTITION} | archive
