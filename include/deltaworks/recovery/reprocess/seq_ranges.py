"""Ranges of `seq`, which Spark and Arrow use as conditions of rows."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow.dataset as ds


@dataclass(frozen=True, slots=True)
class SeqRanges:
    """Ranges of `seq`, both ends included, ascending and apart from each other."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_seqs(cls, seqs: Iterable[int], *, existing_seqs: Sequence[int] | None = None) -> SeqRanges:
        """The fewest ranges that hold `seqs`.

        Args:
            among: every seq there can be a row of, ascending. A range may then run over numbers that are none of
                these. Without it, ranges hold the seqs given and nothing else.
        """
        place = (lambda seq: seq) if existing_seqs is None else (lambda seq: bisect.bisect_left(existing_seqs, seq))
        ranges: list[tuple[int, int]] = []
        for seq in sorted(set(seqs)):
            if ranges and place(seq) == place(ranges[-1][1]) + 1:
                ranges[-1] = (ranges[-1][0], seq)
            else:
                ranges.append((seq, seq))
        return cls(tuple(ranges))

    @classmethod
    def merge(cls, pairs: Iterable[tuple[int, int]]) -> SeqRanges:
        """The fewest ranges that hold what these hold, whatever their order."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(pairs):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return cls(tuple(ranges))

    def clip(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What of the ranges lies between two seqs, both included."""
        at = max(0, bisect.bisect_right(self.ranges, (first, 1 << 63)) - 1)
        for low, high in self.ranges[at:]:
            if low > last:
                return
            if high >= first:
                yield max(low, first), min(high, last)

    def __contains__(self, seq: int) -> bool:
        at = bisect.bisect_right(self.ranges, (seq, 1 << 63)) - 1
        return at >= 0 and seq <= self.ranges[at][1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def first(self) -> int:
        """The lowest seq."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The highest seq."""
        return self.ranges[-1][1]

    def sql(self, column: str = "_seq") -> str:
        """The condition in SQL; `false` for no range."""
        parts = [f"`{column}` BETWEEN {first} AND {last}" for first, last in self.ranges]
        return f"({' OR '.join(parts)})" if parts else "false"

    def expression(self, column: str = "_seq") -> Any:
        """The condition as a filter of an Arrow dataset."""
        field = ds.field(column)
        parts = [(field >= first) & (field <= last) for first, last in self.ranges]
        return reduce(or_, parts) if parts else ds.scalar(False)
