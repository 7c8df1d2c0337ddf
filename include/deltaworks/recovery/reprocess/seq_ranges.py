"""Ranges of `seq` that serve as row conditions for Spark and Arrow."""

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
    """Disjoint ascending ranges of `seq`, both ends inclusive."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_seqs(cls, seqs: Iterable[int], *, existing_seqs: Sequence[int] | None = None) -> SeqRanges:
        """Builds the fewest ranges that contain `seqs`.

        Args:
            existing_seqs: all seqs that rows can have, ascending. A range may then span numbers that no row has.
                Without it, ranges contain exactly `seqs`.
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
        """Builds the fewest ranges that cover these pairs, given in any order."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(pairs):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return cls(tuple(ranges))

    def clip(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of the ranges between two seqs, both inclusive."""
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
        """The lowest seq of all ranges."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The highest seq of all ranges."""
        return self.ranges[-1][1]

    def sql(self, column: str = "_seq") -> str:
        """Returns the condition in SQL; `false` without ranges."""
        parts = [f"`{column}` BETWEEN {first} AND {last}" for first, last in self.ranges]
        return f"({' OR '.join(parts)})" if parts else "false"

    def expression(self, column: str = "_seq") -> Any:
        """Returns the condition as an Arrow dataset filter."""
        field = ds.field(column)
        parts = [(field >= first) & (field <= last) for first, last in self.ranges]
        return reduce(or_, parts) if parts else ds.scalar(False)
