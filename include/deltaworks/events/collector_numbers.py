"""The numbers that collectors gave to events which are kept nowhere on purpose: refused, of erased people, purged.

A collector numbers what it takes without gaps, and a gap tells of loss. So whoever drops an event by rule notes its
number. A number says nothing of the event that had it.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltaworks.errors import ContractError

STAMP_FIELD: Final = "_collector"
# The stamp is the first member of an event, so a raw value that was cut has it too; within a request of API Gateway,
# its quotes are escaped.
RAW_SEQ: Final = r'_collector\\?":\{\\?"v\\?":\d+,\\?"seq\\?":(\d+)'
RAW_COLLECTOR: Final = r'\\?"collector\\?":\\?"([0-9a-f]{32})'
#: Between the two lie the stamp's times and its id, which a client may have chosen.
_RAW_STAMP: Final = re.compile(f"{RAW_SEQ}.{{0,2000}}?{RAW_COLLECTOR}".encode(), re.DOTALL)
_PROCESS: Final = re.compile(r"[0-9a-f]{32}")
#: Numbers that wait to be merged into ranges, of one process.
_MOST_WAITING: Final = 10_000
#: Ranges of a process that are kept apart; the ones nearest to each other are joined beyond that, with what lies
#: between them: a loss there is not seen, and a process takes less than 100 KB of a record.
MOST_RANGES: Final = 50_000
#: Processes that are told apart. A producer that makes stamps of its own could invent names without end.
MOST_PROCESSES: Final = 1_000
_LARGEST: Final = 2**62
Ranges = npt.NDArray[np.int64]


class CollectorNumbers:
    """Numbers by the process that gave them, as merged ranges. Used by one thread; what is added twice is there once.

    Memory is bounded: some 800 KB a process.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, Ranges] = {}
        self._waiting: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges or self._waiting)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectorNumbers) and self.packed() == other.packed()

    __hash__ = None  # type: ignore[assignment]

    def add(self, process: Any, seq: Any) -> None:
        """Add the number of an event; what is no number of a collector is left out."""
        if type(seq) is not int or not 0 <= seq < _LARGEST or type(process) is not str:
            return
        waiting = self._waiting.get(process)
        if waiting is None:
            if not self._is_taken(process):
                return
            waiting = self._waiting.setdefault(process, [])
        waiting.append(seq)
        if len(waiting) >= _MOST_WAITING:
            self._merge(process)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Add the number in an event's stamp, where it has one."""
        stamp = event.get(STAMP_FIELD)
        if type(stamp) is dict:
            self.add(stamp.get("collector"), stamp.get("seq"))

    def add_raw(self, raw: bytes, places: Iterable[int] | None = None) -> None:
        """Add the numbers of the stamps in an event's bytes; of several, those at these places."""
        stamps = _RAW_STAMP.findall(raw)
        chosen = range(len(stamps)) if places is None else [place for place in places if place < len(stamps)]
        for place in chosen:
            seq, process = stamps[place]
            self.add(process.decode(), int(seq))

    def update(self, other: CollectorNumbers) -> None:
        """Add all that another one has."""
        for process, ranges in other.ranges().items():
            self._add_ranges(process, ranges)

    def ranges(self) -> dict[str, Ranges]:
        """First and last of each range, in order and apart, by process."""
        for process in list(self._waiting):
            self._merge(process)
        return self._ranges

    def packed(self) -> dict[str, str]:
        """As texts that records keep, by process."""
        return {process: _packed(ranges) for process, ranges in sorted(self.ranges().items())}

    def add_packed(self, packed: Mapping[str, str]) -> CollectorNumbers:
        """Add what `packed` gave; itself.

        Raises:
            ContractError: COLLECTOR_RECORD_UNREADABLE.
        """
        for process, text in packed.items():
            self._add_ranges(process, _unpacked(text))
        return self

    def _is_taken(self, process: str) -> bool:
        if process in self._ranges or process in self._waiting:
            return True
        return len(self._ranges | self._waiting) < MOST_PROCESSES and _PROCESS.fullmatch(process) is not None

    def _merge(self, process: str) -> None:
        numbers = np.array(self._waiting.pop(process), np.int64)
        self._add_ranges(process, np.stack([numbers, numbers], axis=1))

    def _add_ranges(self, process: str, ranges: Ranges) -> None:
        if self._is_taken(process) and len(ranges):
            before = self._ranges.get(process)
            self._ranges[process] = _merged(ranges if before is None else np.concatenate([before, ranges]))


def _merged(ranges: Ranges) -> Ranges:
    """Ranges in any order as ranges that neither touch nor overlap, at most `MOST_RANGES` of them."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    between = ranges[1:, 0] - ends[:-1] - 1
    apart = between > 0
    if int(apart.sum()) >= MOST_RANGES:
        widest = np.argpartition(between, -(MOST_RANGES - 1))[-(MOST_RANGES - 1) :]
        apart = np.zeros(len(between), np.bool_)
        apart[widest] = True
    firsts = ranges[np.concatenate([[True], apart]), 0]
    lasts = ends[np.concatenate([apart, [True]])]
    return np.stack([firsts, lasts], axis=1)


def _packed(ranges: Sequence[Any] | Ranges) -> str:
    """The steps from one bound to the next, compressed: ranges are short and lie close together."""
    steps = np.diff(np.asarray(ranges, np.int64).reshape(-1), prepend=0).tolist()
    return base64.b64encode(zlib.compress(",".join(map(str, steps)).encode(), 6)).decode()


def _unpacked(text: str) -> Ranges:
    try:
        steps = zlib.decompress(base64.b64decode(text, validate=True)).split(b",")
        return np.cumsum(np.array([int(step) for step in steps], np.int64)).reshape(-1, 2)
    except (ValueError, OverflowError, zlib.error) as error:
        raise ContractError(
            "COLLECTOR_RECORD_UNREADABLE",
            f"The numbers of events that were dropped cannot be read from their record: {error}.",
            hint="Run the release that wrote the batch, or a later one.",
        ) from error
