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
from deltaworks.sources.deaths import Care, OpenedRecord, Place, TaskFailed, death_in
from deltaworks.sources.task_output import TaskOutput

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Records of which one note is made: at first, and by what it shrinks around those a task died on.
_WINDOW_RECORDS, _NARROWING = 4_096, 64
#: More passes than any record needs; beyond them deaths have another cause.
_MOST_PASSES = 100


def unreadable_reason(detail: str) -> Reason:
    """Why a payload is in quarantine that tasks died on."""
    return Reason(ReasonCode.OBJECT_UNREADABLE, "", detail)


def opened_one_by_one(
    references: Sequence[Any], opener: Callable[[Any], Payload], *, record: OpenedRecord, blamed: dict[int, str]
) -> Iterator[Payload]:
    """The payloads of objects inside a task, on record before they are opened; those to blame are not opened.

    What a payload holds is dealt with to the end before the next one is opened.
    """
    refuse_again()
    for reference in references:
        if reference.seq in blamed:
            reason = unreadable_reason(blamed[reference.seq])
            # A source of another kind need not know when its objects came.
            arrived_at_us = getattr(reference, "arrived_at_us", None)
            yield Payload(reference.seq, reference.key, None, reason, arrived_at_us=arrived_at_us)
            continue
        record.note({"seq": reference.seq})
        yield opener(reference)
        yield END_OF_CHUNK
    if len(references) > 1:  # what follows is of all of them; of one that is alone it is its own
        record.note({"seq": None})


def refuse_again() -> None:
    """End an attempt that follows another one of the same task: that one died, which is what has to be known.

    Raises:
        TaskFailed: this is not the first attempt.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise TaskFailed("an_earlier_attempt_died")


def read_objects(
    shares: Iterable[Sequence[Any]], run: Callable[[Sequence[Any]], TaskOutput], care: Care
) -> list[TaskOutput]:
    """The outputs of `run` over all references, in their order; it runs one job of one task for some of them.

    Raises:
        ConfigError: WORKERS_DIE.
        Exception: what a job raised that is no death, or a death with nothing open.
    """
    care.begin()
    waiting = deque(piece for share in shares for piece in _apart(share, care.deaths.keys()))
    outputs: list[TaskOutput] = []
    while waiting:
        share = waiting.popleft()
        care.judge()
        care.before_job()
        try:
            output = run(share)
        except Exception as error:
            cause = death_in(error)
            place = _place_of_death(care, cause)
            if place is None:
                raise
            log.warning("a task died on %s of %d objects: %s", place, len(share), cause)
            waiting.extendleft(reversed(_pieces(share, place["seq"])))
        else:
            care.forget_opened()
            if any(reference.seq not in care.blamed() for reference in share):
                care.note_read_well()
            outputs.append(replace(output, task=len(outputs)))
    return outputs


def _place_of_death(care: Care, cause: str | None) -> Place | None:
    """What was open when a task died of this cause; None where none died, or with nothing open."""
    if cause is not None:
        return care.add_death(cause)
    care.forget_opened()
    return None


def _pieces(share: Sequence[Any], seq: int | None) -> list[Sequence[Any]]:
    """A share on which a task died, in smaller ones: what was open apart, or halves where nothing was."""
    if seq is not None or len(share) == 1:
        return _apart(share, {seq})
    return [share[: len(share) // 2], share[len(share) // 2 :]]


def _apart(share: Sequence[Any], seqs: Iterable[int | None]) -> list[Sequence[Any]]:
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
        self.narrow: list[tuple[int, int, int]] = []

    def narrowed(self, first: int, records: int) -> None:
        """Take note of a death in `records` from `first` on."""
        if records > 1:
            self.narrow.append((first, first + records, max(1, records // _NARROWING)))

    def size_at(self, number: int) -> int:
        """How many records the note that begins with this one is of."""
        within = [size for start, end, size in self.narrow if start <= number < end]
        if within:
            return min(within)
        # A window ends where a narrower one begins.
        behind = [start for start, _, _ in self.narrow if start > number]
        return min([_WINDOW_RECORDS, *(start - number for start in behind)])


def records_in_windows(
    payloads: Iterable[Payload], windows: RecordWindows, *, record: OpenedRecord, blamed: dict[int, str]
) -> Iterator[Payload]:
    """The payloads of records inside a task, on record in windows; of those to blame only the bytes are kept."""
    refuse_again()
    left, number = 0, 0
    for payload in payloads:
        if left == 0:
            yield END_OF_CHUNK
            left = windows.size_at(number)
            record.note({"seq": payload.seq if left == 1 else None, "first": number, "records": left})
        if payload.seq in blamed:
            yield replace(payload, problem=unreadable_reason(blamed[payload.seq]), record=payload.record or {})
        else:
            yield payload
        left, number = left - 1, number + 1
    yield END_OF_CHUNK
    record.note({"seq": None, "first": number, "records": 0})


def read_records(run: Callable[[RecordWindows, dict[int, str]], T], care: Care) -> T:
    """What `run` makes of all records, in a pass of one task; passes are repeated until none dies.

    Raises:
        ConfigError: WORKERS_DIE.
        Exception: what a pass raised that is no death, or a death that no record can be blamed for.
    """
    care.begin()
    windows = RecordWindows()
    for _ in range(_MOST_PASSES):
        care.judge()
        care.before_job()
        try:
            read = run(windows, care.blamed())
        except Exception as error:
            cause = death_in(error)
            place = _place_of_death(care, cause)
            if place is None or not place["records"]:
                raise
            log.warning("a task died on records %s: %s", place, cause)
            windows.narrowed(int(place["first"] or 0), int(place["records"]))
            # What lies before it was read; so many of these are not to blame.
            if int(place["first"] or 0) > len(care.blamed()):
                care.note_read_well()
        else:
            care.forget_opened()
            return read
    raise RuntimeError("tasks die on more records than can be told apart")
