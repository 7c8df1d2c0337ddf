"""Sets of 128-bit hashes of ids in sorted arrays, which keep their ids across batches.

Duplicate flagging (`WindowIds`): files are immutable, so a worker reads the id column of each file once. Arrays of the
same day are merged to keep their number small. When a file leaves the table, the merged array with its ids is dropped
and the array's other files are read again.

Gold (`HashRuns`): a set that only grows, of which large arrays are in files without a name. The operating system keeps
them in its page cache while memory is free, and frees them with the process however it ends.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

#: Keys of the two SipHash halves. A collision in both halves is practically impossible.
_KEYS = ("deltaworks ids 1", "deltaworks ids 2")
BYTES_PER_ID = 16


@dataclass(frozen=True, slots=True)
class IdHashes:
    """Hashes of ids in two parallel arrays: first halves (`high`, sorted) and second halves (`low`)."""

    high: Any
    low: Any

    @classmethod
    def from_ids(cls, ids: pa.Array | pa.ChunkedArray) -> IdHashes:
        """Hashes ids; nulls are omitted."""
        return cls.from_hashes(*hash_ids(ids.drop_null()))

    @classmethod
    def from_hashes(cls, high: Any, low: Any) -> IdHashes:
        """Creates the sorted form of hashes in any order."""
        order = np.argsort(high, kind="stable")
        return cls(high[order], low[order])

    @classmethod
    def from_bytes(cls, data: bytes) -> IdHashes:
        """Decodes hashes that `to_bytes` encoded."""
        high, low = np.frombuffer(data, dtype=np.uint64).reshape(2, -1)
        return cls(high, low)

    def to_bytes(self) -> bytes:
        """Encodes the hashes with BYTES_PER_ID bytes each: first all first halves, then all second halves."""
        return bytes(np.stack([self.high, self.low]).tobytes())

    def __len__(self) -> int:
        return len(self.high)

    def contains(self, high: Any, low: Any) -> Any:
        """Returns, for each given hash, whether it is in this set."""
        if not len(self.high):
            return np.zeros(len(high), dtype=bool)
        index = np.minimum(np.searchsorted(self.high, high), len(self.high) - 1)
        return (self.high[index] == high) & (self.low[index] == low)

    def union(self, other: IdHashes) -> IdHashes:
        """Returns the union of both sets."""
        return self.from_hashes(np.concatenate([self.high, other.high]), np.concatenate([self.low, other.low]))


def hash_ids(ids: pa.Array | pa.ChunkedArray, keys: tuple[str, str] = _KEYS) -> tuple[Any, Any]:
    """Returns the two halves of each id's hash as arrays. The hash of a null id is undefined.

    Args:
        keys: a key of 16 characters for each half.
    """
    values: Any = np.asarray(ids.fill_null("").to_numpy(zero_copy_only=False), dtype=object)
    high, low = (pd.util.hash_array(values, hash_key=key, categorize=False) for key in keys)
    return high, low


#: Size of an array from which it is moved to a file.
_SPILLED_BYTES: Final = 1 << 19


def spilled(values: Any) -> Any:
    """Returns a large array in a file that has no name, so none remains after the process; a small one unchanged."""
    if values.nbytes < _SPILLED_BYTES:
        return values
    with tempfile.TemporaryFile() as file:
        values.tofile(file)
        file.flush()
        return np.memmap(file, dtype=values.dtype, mode="r")


class HashRuns:
    """A set of hashes that only grows: adding costs the new ones, and seldom a merge. Used by one thread."""

    def __init__(self) -> None:
        self._runs: list[IdHashes] = []

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def add(self, hashes: IdHashes) -> None:
        """Adds hashes. Runs of similar size are merged, newest first, so that their number stays logarithmic."""
        if not len(hashes):
            return
        while self._runs and len(self._runs[-1]) <= 2 * len(hashes):
            hashes = self._runs.pop().union(hashes)
        self._runs.append(IdHashes(spilled(hashes.high), spilled(hashes.low)))

    def contains(self, high: Any, low: Any) -> Any:
        """Returns, for each given hash, whether it is in this set."""
        order = np.argsort(high)  # neighbouring look-ups read the same pages
        mask = np.zeros(len(high), dtype=bool)
        for run in self._runs:
            mask[order] |= run.contains(high[order], low[order])
        self._release_pages()
        return mask

    def _release_pages(self) -> None:
        """Returns the pages read of files to the page cache, so that they do not count as this process's memory."""
        for run in self._runs:
            for half in (run.high, run.low):
                if isinstance(half, np.memmap):
                    half._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class WindowFile:
    """A file in the duplicate window; `day` is the arrival date of its newest row."""

    path: str
    day: str
    rows: int


@dataclass(slots=True)
class _Segment:
    day: str
    paths: set[str]
    ids: IdHashes


class WindowIds:
    """The ids of all files in one table's duplicate window. Used by one thread."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def __len__(self) -> int:
        return sum(len(segment.ids) for segment in self._segments)

    def sync(self, files: Iterable[WindowFile], read: Callable[[str], pa.ChunkedArray | None]) -> int:
        """Loads the ids of files that are new in the window and drops the ids of files that left it.

        Args:
            read: returns a file's ids; None if the file no longer exists.

        Returns:
            The number of files that were read.
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
        """Merges arrays of similar size, newest first, so that their number stays logarithmic."""
        of_day = [segment for segment in self._segments if segment.day == day]
        while len(of_day) > 1 and len(of_day[-2].ids) <= 2 * len(of_day[-1].ids):
            newest, previous = of_day.pop(), of_day.pop()
            of_day.append(_Segment(day, previous.paths | newest.paths, previous.ids.union(newest.ids)))
        self._segments = [segment for segment in self._segments if segment.day != day] + of_day

    def contains(self, high: Any, low: Any) -> Any:
        """Returns, for each given hash, whether it is in the window."""
        mask = np.zeros(len(high), dtype=bool)
        for segment in self._segments:
            mask |= segment.ids.contains(high, low)
        return mask
