"""The output of a task, and isolated tasks, which re-read a batch after a worker crash to identify the payload.

A batch is prepared from task outputs only, so exactly-once depends on them: a file that no output contains is not
committed. Outputs are merged in task order, regardless of their arrival order.

After a crash a batch is read one task at a time, and each payload is recorded before it is opened. After
`crashes_per_object` crashes the payload is quarantined; the rest of the batch commits. Jobs of one task take longer
than a parallel pass, but only for this batch. A lost executor counts as a crash too. A payload is quarantined wrongly
only if that many executors are lost while it is open, and a quarantined payload can be replayed.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from deltaworks.events.chunks import END_OF_CHUNK, Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.events.task_findings import TaskFindings
from deltaworks.sources.records import ReadStatistics
from deltaworks.sources.worker_crashes import CrashIsolation, OpenMarker, OpenPosition, TaskFailed, crash_cause
from deltaworks.tables.files import WrittenFile

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutput:
    """The files and findings of one task.

    Attributes:
        task: its number in the pass, from 0; payloads of lower numbers come first.
        files: files written, by table, in row order.
        findings: results other than rows, including the error that must stop the stream.
        first_ids: per table that flags duplicates, hashes of the ids in order of first occurrence, 16 bytes each.
        read_statistics: how much of a stream the task read.
        read_ranges: ranges of a stream the task read, from the source's `LossCheck`; plain JSON values.
    """

    task: int = 0
    files: Mapping[str, tuple[WrittenFile, ...]] = field(default_factory=dict)
    findings: TaskFindings = field(default_factory=TaskFindings)
    first_ids: Mapping[str, bytes] = field(default_factory=dict)
    read_statistics: ReadStatistics = field(default_factory=ReadStatistics)
    read_ranges: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """Serializes the output: the length of a JSON header, the header, and the raw hashes."""
        header = {
            "task": self.task,
            "files": {table: [_file_record(file) for file in files] for table, files in self.files.items()},
            "findings": self.findings.as_record(),
            "first_ids": {table: len(ids) for table, ids in self.first_ids.items()},
            "read_statistics": asdict(self.read_statistics),
            "read_ranges": self.read_ranges,
        }
        text = json.dumps(header).encode()
        return b"".join([len(text).to_bytes(_LENGTH_BYTES), text, *self.first_ids.values()])

    @classmethod
    def decode(cls, data: bytes) -> TaskOutput:
        """Deserializes the bytes from `encode`."""
        at = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
        header = json.loads(data[_LENGTH_BYTES:at])
        first_ids = {}
        for table, length in header["first_ids"].items():
            first_ids[table] = bytes(data[at : at + length])
            at += length
        return cls(
            task=header["task"],
            files={table: tuple(WrittenFile(**file) for file in files) for table, files in header["files"].items()},
            findings=TaskFindings.from_record(header["findings"]),
            first_ids=first_ids,
            read_statistics=ReadStatistics(**header["read_statistics"]),
            read_ranges=tuple(header["read_ranges"]),
        )


def _file_record(file: WrittenFile) -> dict[str, Any]:
    # `asdict` copies nested values, which takes longer than everything else here.
    return {name: getattr(file, name) for name in WrittenFile.__slots__}


def sort_by_task(outputs: Iterable[TaskOutput]) -> list[TaskOutput]:
    """Returns the outputs of a pass in task order, which is the order of the payloads."""
    return sorted(outputs, key=lambda output: output.task)


def sum_read_statistics(outputs: Iterable[TaskOutput]) -> ReadStatistics:
    """Returns the total statistics of all tasks."""
    total = ReadStatistics()
    for output in outputs:
        total.add(output.read_statistics)
    return total


log = logging.getLogger(__name__)
T = TypeVar("T")
#: Number of records that one marker covers at first, and the factor by which it shrinks around a crash.
_WINDOW_RECORDS, _NARROWING_FACTOR = 4_096, 64
#: Isolating a record takes fewer passes. After this many, the crashes have another cause.
_MAX_PASSES = 100


def unreadable_reason(detail: str) -> Reason:
    """Returns the quarantine reason of a payload that crashed tasks."""
    return Reason(ReasonCode.OBJECT_UNREADABLE, "", detail)


def open_isolated(
    references: Sequence[Any], opener: Callable[[Any], Payload], *, marker: OpenMarker, skip_reasons: dict[int, str]
) -> Iterator[Payload]:
    """Opens objects inside a task and writes a marker before each. Objects in `skip_reasons` are not opened; they
    become rejected payloads.

    Each payload is processed completely before the next is opened.
    """
    fail_retried_task()
    for reference in references:
        if reference.seq in skip_reasons:
            reason = unreadable_reason(skip_reasons[reference.seq])
            # Other sources may not know the arrival time of their objects.
            arrived_at_us = getattr(reference, "arrived_at_us", None)
            yield Payload(reference.seq, reference.key, None, reason, arrived_at_us=arrived_at_us)
            continue
        marker.write({"seq": reference.seq})
        yield opener(reference)
        yield END_OF_CHUNK
    if len(references) > 1:  # with a single object, the work that follows concerns it too
        marker.write({"seq": None})


def fail_retried_task() -> None:
    """Fails an attempt that Spark started because an earlier attempt of the task crashed, so that the driver sees the
    crash.

    Raises:
        TaskFailed: this is not the first attempt.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise TaskFailed("earlier_attempt_crashed")


def read_objects_isolated(
    task_inputs: Iterable[Sequence[Any]], run: Callable[[Sequence[Any]], TaskOutput], isolation: CrashIsolation
) -> list[TaskOutput]:
    """Runs `run` on all references in jobs of one task each; returns the outputs in order.

    Raises:
        ConfigError: WORKERS_CRASH.
        Exception: a job failed without a worker crash, or a worker crashed with no payload open.
    """
    isolation.start()
    pending = deque(
        piece for task_input in task_inputs for piece in _isolate_positions(task_input, isolation.crashes.keys())
    )
    outputs: list[TaskOutput] = []
    while pending:
        task_input = pending.popleft()
        isolation.check_workers()
        isolation.start_job()
        try:
            output = run(task_input)
        except Exception as error:
            cause = crash_cause(error)
            position = _record_crash(isolation, cause)
            if position is None:
                raise
            log.warning("A task crashed at %s of %d objects: %s", position, len(task_input), cause)
            pending.extendleft(reversed(_split_after_crash(task_input, position["seq"])))
        else:
            isolation.clear_marker()
            if any(reference.seq not in isolation.skip_reasons() for reference in task_input):
                isolation.record_success()
            outputs.append(replace(output, task=len(outputs)))
    return outputs


def _record_crash(isolation: CrashIsolation, cause: str | None) -> OpenPosition | None:
    """Counts a crash and returns the position that was open; None if nothing was open. Without a crash, deletes the
    marker.
    """
    if cause is not None:
        return isolation.record_crash(cause)
    isolation.clear_marker()
    return None


def _split_after_crash(task_input: Sequence[Any], seq: int | None) -> list[Sequence[Any]]:
    """Splits the input of a task that crashed: isolates the open payload, or halves the input if no payload was
    open."""
    if seq is not None or len(task_input) == 1:
        return _isolate_positions(task_input, {seq})
    return [task_input[: len(task_input) // 2], task_input[len(task_input) // 2 :]]


def _isolate_positions(task_input: Sequence[Any], seqs: Iterable[int | None]) -> list[Sequence[Any]]:
    """Splits the input of a task into consecutive parts. Each object with one of these `seq` gets a part of its own."""
    isolated = frozenset(seqs)
    numbers = itertools.count(1)
    groups = itertools.groupby(task_input, key=lambda reference: next(numbers) if reference.seq in isolated else 0)
    return [list(group) for _, group in groups]


class RecordWindows:
    """Decides how many records one marker covers: few where a task crashed, many elsewhere. Used by the driver.

    Records are numbered by their position in the pass, which is the same in every pass.
    """

    def __init__(self) -> None:
        self.narrowed_ranges: list[tuple[int, int, int]] = []

    def narrow(self, first: int, records: int) -> None:
        """Makes markers cover fewer records after a crash within the `records` records from `first` on."""
        if records > 1:
            self.narrowed_ranges.append((first, first + records, max(1, records // _NARROWING_FACTOR)))

    def window_size(self, index: int) -> int:
        """Returns the number of records covered by the marker that begins at this index."""
        sizes = [size for start, end, size in self.narrowed_ranges if start <= index < end]
        if sizes:
            return min(sizes)
        # A window ends where a narrower one begins.
        narrower = [start for start, _, _ in self.narrowed_ranges if start > index]
        return min([_WINDOW_RECORDS, *(start - index for start in narrower)])


def isolate_records(
    payloads: Iterable[Payload], windows: RecordWindows, *, marker: OpenMarker, skip_reasons: dict[int, str]
) -> Iterator[Payload]:
    """Yields the payloads of records inside a task and writes a marker per window of records. The payload of a record
    in `skip_reasons` is marked unreadable.
    """
    fail_retried_task()
    remaining, number = 0, 0
    for payload in payloads:
        if remaining == 0:
            yield END_OF_CHUNK
            remaining = windows.window_size(number)
            marker.write({"seq": payload.seq if remaining == 1 else None, "first": number, "records": remaining})
        if payload.seq in skip_reasons:
            yield replace(payload, problem=unreadable_reason(skip_reasons[payload.seq]), record=payload.record or {})
        else:
            yield payload
        remaining, number = remaining - 1, number + 1
    yield END_OF_CHUNK
    marker.write({"seq": None, "first": number, "records": 0})


def read_records_isolated(run: Callable[[RecordWindows, dict[int, str]], T], isolation: CrashIsolation) -> T:
    """Runs `run` over all records, in passes of one task, until a pass ends without a crash; returns its result.

    Raises:
        ConfigError: WORKERS_CRASH.
        Exception: a pass failed without a worker crash, or the crash cannot be attributed to a record.
    """
    isolation.start()
    windows = RecordWindows()
    for _ in range(_MAX_PASSES):
        isolation.check_workers()
        isolation.start_job()
        try:
            result = run(windows, isolation.skip_reasons())
        except Exception as error:
            cause = crash_cause(error)
            position = _record_crash(isolation, cause)
            if position is None or not position["records"]:
                raise
            log.warning("A task crashed at records %s: %s", position, cause)
            windows.narrow(int(position["first"] or 0), int(position["records"]))
            # Records before the position were read without a crash, except those already skipped.
            if int(position["first"] or 0) > len(isolation.skip_reasons()):
                isolation.record_success()
        else:
            isolation.clear_marker()
            return result
    raise RuntimeError("Tasks crash on more records than can be isolated")
