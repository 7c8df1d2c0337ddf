"""Sequence numbers of collector events that were dropped on purpose: opted out, of erased people, or purged.

A collector process numbers the events it accepts without gaps, so a gap in the tables means loss. Code that drops an
event by rule records its number, so that the gap is explained. A number contains no personal data.
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
# The collector puts its stamp (process, sequence number, time) first in an event, so truncated raw bytes contain it
# too. Its quotes are escaped within a request of API Gateway.
RAW_SEQ_PATTERN: Final = r'_collector\\?":\{\\?"v\\?":\d+,\\?"seq\\?":(\d+)'
RAW_COLLECTOR_PATTERN: Final = r'\\?"collector\\?":\\?"([0-9a-f]{32})'
#: Between process and number are the stamp's times and an id that the client may choose.
_RAW_STAMP: Final = re.compile(f"{RAW_SEQ_PATTERN}.{{0,2000}}?{RAW_COLLECTOR_PATTERN}".encode(), re.DOTALL)
_PROCESS: Final = re.compile(r"[0-9a-f]{32}")
#: Sequence numbers per process that are buffered before they are merged into ranges.
_MAX_PENDING: Final = 10_000
#: Maximum number of ranges per process. Beyond it the closest ranges are joined, which hides a loss in the gap between
#: them, but keeps a record below 100 KB per process.
MAX_RANGES: Final = 50_000
#: Maximum number of distinct processes. A producer with forged stamps could invent any number of names.
MAX_PROCESSES: Final = 1_000
_MAX_SEQUENCE_NUMBER: Final = 2**62
Ranges = npt.NDArray[np.int64]


class CollectorSequenceNumbers:
    """Sequence numbers by collector process, as merged ranges. Duplicates count once. Not thread-safe.

    Uses at most about 800 KB of memory per process.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, Ranges] = {}
        self._pending: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges or self._pending)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectorSequenceNumbers) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]

    def add(self, process: Any, seq: Any) -> None:
        """Adds the sequence number of one event; ignores invalid values."""
        if type(seq) is not int or not 0 <= seq < _MAX_SEQUENCE_NUMBER or type(process) is not str:
            return
        pending = self._pending.get(process)
        if pending is None:
            if not self._accepts(process):
                return
            pending = self._pending.setdefault(process, [])
        pending.append(seq)
        if len(pending) >= _MAX_PENDING:
            self._merge(process)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Adds the sequence number in an event's collector stamp; does nothing without a stamp."""
        stamp = event.get(STAMP_FIELD)
        if type(stamp) is dict:
            self.add(stamp.get("collector"), stamp.get("seq"))

    def add_raw(self, raw: bytes, indexes: Iterable[int] | None = None) -> None:
        """Adds the sequence numbers of all collector stamps in raw bytes.

        Args:
            indexes: ordinals of the stamps to add; all by default.
        """
        stamps = _RAW_STAMP.findall(raw)
        selected = range(len(stamps)) if indexes is None else [index for index in indexes if index < len(stamps)]
        for index in selected:
            seq, process = stamps[index]
            self.add(process.decode(), int(seq))

    def merge(self, other: CollectorSequenceNumbers) -> None:
        """Adds all numbers of another instance."""
        for process, ranges in other.ranges().items():
            self._add_ranges(process, ranges)

    def ranges(self) -> dict[str, Ranges]:
        """Returns (first, last) of each range by process, sorted and disjoint."""
        for process in list(self._pending):
            self._merge(process)
        return self._ranges

    def encode(self) -> dict[str, str]:
        """Returns the ranges of each process as compressed text, for storage in records."""
        return {process: _encode_ranges(ranges) for process, ranges in sorted(self.ranges().items())}

    def add_encoded(self, packed: Mapping[str, str]) -> CollectorSequenceNumbers:
        """Adds ranges in the form returned by `encode`; returns self.

        Raises:
            ContractError: COLLECTOR_RECORD_UNREADABLE.
        """
        for process, text in packed.items():
            self._add_ranges(process, _decode_ranges(text))
        return self

    def _accepts(self, process: str) -> bool:
        if process in self._ranges or process in self._pending:
            return True
        return len(self._ranges | self._pending) < MAX_PROCESSES and _PROCESS.fullmatch(process) is not None

    def _merge(self, process: str) -> None:
        numbers = np.array(self._pending.pop(process), np.int64)
        self._add_ranges(process, np.stack([numbers, numbers], axis=1))

    def _add_ranges(self, process: str, ranges: Ranges) -> None:
        if self._accepts(process) and len(ranges):
            existing = self._ranges.get(process)
            self._ranges[process] = _merge_ranges(ranges if existing is None else np.concatenate([existing, ranges]))


def _merge_ranges(ranges: Ranges) -> Ranges:
    """Merges ranges in any order into at most `MAX_RANGES` ranges that neither overlap nor touch."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    gaps = ranges[1:, 0] - ends[:-1] - 1
    is_separate = gaps > 0
    if int(is_separate.sum()) >= MAX_RANGES:
        widest = np.argpartition(gaps, -(MAX_RANGES - 1))[-(MAX_RANGES - 1) :]
        is_separate = np.zeros(len(gaps), np.bool_)
        is_separate[widest] = True
    firsts = ranges[np.concatenate([[True], is_separate]), 0]
    lasts = ends[np.concatenate([is_separate, [True]])]
    return np.stack([firsts, lasts], axis=1)


def _encode_ranges(ranges: Sequence[Any] | Ranges) -> str:
    """Encodes ranges as compressed text of differences, which are small because the ranges are short and close
    together.
    """
    steps = np.diff(np.asarray(ranges, np.int64).reshape(-1), prepend=0).tolist()
    return base64.b64encode(zlib.compress(",".join(map(str, steps)).encode(), 6)).decode()


def _decode_ranges(text: str) -> Ranges:
    try:
        steps = zlib.decompress(base64.b64decode(text, validate=True)).split(b",")
        return np.cumsum(np.array([int(step) for step in steps], np.int64)).reshape(-1, 2)
    except (ValueError, OverflowError, zlib.error) as error:
        raise ContractError(
            "COLLECTOR_RECORD_UNREADABLE",
            f"The record with the sequence numbers of dropped events cannot be read: {error}.",
        ) from error
