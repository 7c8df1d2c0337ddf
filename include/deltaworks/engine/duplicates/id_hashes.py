"""The ids of a table's recent files, as 128-bit hashes in sorted arrays, kept from batch to batch in a Python worker.

Files never change, so each is read once by a worker, its id column alone. Arrays of one day are merged as they grow, so
that there are few of them; those of a file that is in the table no more are dropped, with what was merged with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

#: Two keys of SipHash: that two ids of a table share both halves is out of the question.
_KEYS = ("deltaworks ids 1", "deltaworks ids 2")
BYTES_PER_ID = 16


@dataclass(frozen=True, slots=True)
class IdHashes:
    """Hashes of ids, ascending by their first half; the second halves beside them."""

    high: Any
    low: Any

    @classmethod
    def from_ids(cls, ids: pa.Array | pa.ChunkedArray) -> IdHashes:
        """Of ids, nulls left out."""
        return cls.from_hashes(*hash_ids(ids.drop_null()))

    @classmethod
    def from_hashes(cls, high: Any, low: Any) -> IdHashes:
        """Of hashes in any order."""
        order = np.argsort(high, kind="stable")
        return cls(high[order], low[order])

    @classmethod
    def from_bytes(cls, data: bytes) -> IdHashes:
        """The reverse of `to_bytes`."""
        high, low = np.frombuffer(data, dtype=np.uint64).reshape(2, -1)
        return cls(high, low)

    def to_bytes(self) -> bytes:
        """BYTES_PER_ID for each id: all first halves, then all second ones."""
        return bytes(np.stack([self.high, self.low]).tobytes())

    def __len__(self) -> int:
        return len(self.high)

    def contains(self, high: Any, low: Any) -> Any:
        """Which of these hashes are among them, as a mask."""
        if not len(self.high):
            return np.zeros(len(high), dtype=bool)
        at = np.minimum(np.searchsorted(self.high, high), len(self.high) - 1)
        return (self.high[at] == high) & (self.low[at] == low)

    def union(self, other: IdHashes) -> IdHashes:
        """Both together."""
        return self.from_hashes(np.concatenate([self.high, other.high]), np.concatenate([self.low, other.low]))


def hash_ids(ids: pa.Array | pa.ChunkedArray) -> tuple[Any, Any]:
    """Both halves of each id's hash; that of a null means nothing."""
    values: Any = np.asarray(ids.fill_null("").to_numpy(zero_copy_only=False), dtype=object)
    high, low = (pd.util.hash_array(values, hash_key=key, categorize=False) for key in _KEYS)
    return high, low


@dataclass(frozen=True, slots=True)
class WindowFile:
    """A file whose ids count; `day` is that of its newest arrival."""

    path: str
    day: str
    rows: int


@dataclass(slots=True)
class _Segment:
    day: str
    paths: set[str]
    ids: IdHashes


class WindowIds:
    """The ids of one table's files in its window. Used by one thread."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def __len__(self) -> int:
        return sum(len(segment.ids) for segment in self._segments)

    def sync(self, files: Iterable[WindowFile], read: Callable[[str], pa.ChunkedArray | None]) -> int:
        """Know the ids of these files and of no others.

        Args:
            read: gives a file's ids; None where the file is gone meanwhile.

        Returns:
            How many files had to be read.
        """
        by_path = {file.path: file for file in files}
        self._segments = [segment for segment in self._segments if segment.paths <= by_path.keys()]
        present = {path for segment in self._segments for path in segment.paths}
        new: dict[str, list[str]] = defaultdict(list)
        for path, file in by_path.items():
            if path not in present:
                new[file.day].append(path)
        for day, paths in new.items():
            chunks = [ids for path in paths if (ids := read(path)) is not None]
            ids_of_day = pa.chunked_array([chunk for ids in chunks for chunk in ids.chunks], type=pa.string())
            self._segments.append(_Segment(day, set(paths), IdHashes.from_ids(ids_of_day)))
            self._merge(day)
        return sum(len(paths) for paths in new.values())

    def _merge(self, day: str) -> None:
        """Merge arrays of like sizes, the newest first: so there are about as many as the count of ids has digits."""
        of_day = [segment for segment in self._segments if segment.day == day]
        while len(of_day) > 1 and len(of_day[-2].ids) <= 2 * len(of_day[-1].ids):
            newest, previous = of_day.pop(), of_day.pop()
            of_day.append(_Segment(day, previous.paths | newest.paths, previous.ids.union(newest.ids)))
        self._segments = [segment for segment in self._segments if segment.day != day] + of_day

    def contains(self, high: Any, low: Any) -> Any:
        """Which of these hashes are known, as a mask."""
        mask = np.zeros(len(high), dtype=bool)
        for segment in self._segments:
            mask |= segment.ids.contains(high, low)
        return mask
