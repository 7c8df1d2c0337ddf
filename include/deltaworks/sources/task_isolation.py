"""Reads a batch on which tasks died: one task at a time, each payload on record before it is opened.

So a death has one payload. That one is read apart from its neighbours, and no more once tasks died on it as often as is
declared; the rest of the batch lands meanwhile. Jobs of one task take longer than a pass of many, which is the price of
the one batch. A lost executor counts as a death too: it takes as many of them, all with the same payload open, to blame
one wrongly, and a payload that is quarantined can be replayed.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from deltaworks.events.parse import END_OF_CHUNK, Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.sources.task_output import TaskOutput
from deltaworks.sources.worker_crashes import CrashIsolation, OpenMarker, OpenPosition, TaskFailed, crash_cause

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Records of which one note is made: at first, and by what it shrinks around those a task died on.
_WINDOW_RECORDS, _NARROWING_FACTOR = 4_096, 64
#: More passes than any record needs; beyond them deaths have another cause.
_MAX_PASSES = 100


def unreadable_reason(detail: str) -> Reason:
    """Why a payload is in quarantine that tasks died on."""
    return Reason(ReasonCode.OBJECT_UNREADABLE, "", detail)


def open_isolated(
    references: Sequence[Any], opener: Callable[[Any], Payload], *, marker: OpenMarker, skip_reasons: dict[int, str]
) -> Iterator[Payload]:
    """The payloads of objects inside a task, on record before they are opened; those to blame are not opened.

    What a payload holds is dealt with to the end before the next one is opened.
    """
    fail_retried_task()
    for reference in references:
        if reference.seq in skip_reasons:
            reason = unreadable_reason(skip_reasons[reference.seq])
            # A source of another kind need not know when its objects came.
            arrived_at_us = getattr(reference, "arrived_at_us", None)
            yield Payload(reference.seq, reference.key, None, reason, arrived_at_us=arrived_at_us)
            continue
        marker.write({"seq": reference.seq})
        yield opener(reference)
        yield END_OF_CHUNK
    if len(references) > 1:  # what follows is of all of them; of one that is alone it is its own
        marker.write({"seq": None})


def fail_retried_task() -> None:
    """End an attempt that follows another one of the same task: that one died, which is what has to be known.

    Raises:
        TaskFailed: this is not the first attempt.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise TaskFailed("an_earlier_attempt_died")


def read_objects_isolated(
    shares: Iterable[Sequence[Any]], run: Callable[[Sequence[Any]], TaskOutput], isolation: CrashIsolation
) -> list[TaskOutput]:
    """The outputs of `run` over all references, in their order; it runs one job of one task for some of them.

    Raises:
        ConfigError: WORKERS_CRASH.
        Exception: what a job raised that is no death, or a death with nothing open.
    """
    isolation.start()
    waiting = deque(piece for share in shares for piece in _split_out(share, isolation.crashes.keys()))
    outputs: list[TaskOutput] = []
    while waiting:
        share = waiting.popleft()
        isolation.check_workers()
        isolation.start_job()
        try:
            output = run(share)
        except Exception as error:
            cause = crash_cause(error)
            place = _record_crash(isolation, cause)
            if place is None:
                raise
            log.warning("a task died on %s of %d objects: %s", place, len(share), cause)
            waiting.extendleft(reversed(_split_after_crash(share, place["seq"])))
        else:
            isolation.clear_marker()
            if any(reference.seq not in isolation.skip_reasons() for reference in share):
                isolation.record_success()
            outputs.append(replace(output, task=len(outputs)))
    return outputs


def _record_crash(isolation: CrashIsolation, cause: str | None) -> OpenPosition | None:
    """What was open when a task died of this cause; None where none died, or with nothing open."""
    if cause is not None:
        return isolation.record_crash(cause)
    isolation.clear_marker()
    return None


def _split_after_crash(share: Sequence[Any], seq: int | None) -> list[Sequence[Any]]:
    """A share on which a task died, in smaller ones: what was open apart, or halves where nothing was."""
    if seq is not None or len(share) == 1:
        return _split_out(share, {seq})
    return [share[: len(share) // 2], share[len(share) // 2 :]]


def _split_out(share: Sequence[Any], seqs: Iterable[int | None]) -> list[Sequence[Any]]:
    """The share in pieces, in its order; of what has one of these numbers, each alone."""
    alone = frozenset(seqs)
    numbers = itertools.count(1)
    groups = itertools.groupby(share, key=lambda reference: next(numbers) if reference.seq in alone else 0)
    return [list(group) for _, group in groups]


class RecordWindows:
    """Which records of a pass are on record together: few where a task died, many elsewhere. Used by the driver.

    Records are numbered by their place in the pass, which is the same in each.
    """

    def __init__(self) -> None:
        self.narrowed_ranges: list[tuple[int, int, int]] = []

    def narrow(self, first: int, records: int) -> None:
        """Take note of a death in `records` from `first` on."""
        if records > 1:
            self.narrowed_ranges.append((first, first + records, max(1, records // _NARROWING_FACTOR)))

    def window_size(self, index: int) -> int:
        """How many records the note that begins with this one is of."""
        within = [size for start, end, size in self.narrowed_ranges if start <= index < end]
        if within:
            return min(within)
        # A window ends where a narrower one begins.
        behind = [start for start, _, _ in self.narrowed_ranges if start > index]
        return min([_WINDOW_RECORDS, *(start - index for start in behind)])


def isolate_records(
    payloads: Iterable[Payload], windows: RecordWindows, *, marker: OpenMarker, skip_reasons: dict[int, str]
) -> Iterator[Payload]:
    """The payloads of records inside a task, on record in windows; of those to blame only the bytes are kept."""
    fail_retried_task()
    left, number = 0, 0
    for payload in payloads:
        if left == 0:
            yield END_OF_CHUNK
            left = windows.window_size(number)
            marker.write({"seq": payload.seq if left == 1 else None, "first": number, "records": left})
        if payload.seq in skip_reasons:
            yield replace(payload, problem=unreadable_reason(skip_reasons[payload.seq]), record=payload.record or {})
        else:
            yield payload
        left, number = left - 1, number + 1
    yield END_OF_CHUNK
    marker.write({"seq": None, "first": number, "records": 0})


def read_records_isolated(run: Callable[[RecordWindows, dict[int, str]], T], isolation: CrashIsolation) -> T:
    """What `run` makes of all records, in a pass of one task; passes are repeated until none dies.

    Raises:
        ConfigError: WORKERS_CRASH.
        Exception: what a pass raised that is no death, or a death that no record can be blamed for.
    """
    isolation.start()
    windows = RecordWindows()
    for _ in range(_MAX_PASSES):
        isolation.check_workers()
        isolation.start_job()
        try:
            read = run(windows, isolation.skip_reasons())
        except Exception as error:
            cause = crash_cause(error)
            place = _record_crash(isolation, cause)
            if place is None or not place["records"]:
                raise
            log.warning("a task died on records %s: %s", place, cause)
            windows.narrow(int(place["first"] or 0), int(place["records"]))
            # What lies before it was read; so many of these are not to blame.
            if int(place["first"] or 0) > len(isolation.skip_reasons()):
                isolation.record_success()
        else:
            isolation.clear_marker()
            return read
    raise RuntimeError("tasks die on more records than can be told apart")
