"""What the planners of streams over a file event log have in common: limits of batches, and patience with storage.

An exception in planning ends the query, so storage that does not answer is waited for inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from deltaworks.sources.objects.slices import SliceLimits
from deltaworks.sources.outages import through_outages

#: Files of the largest batch, whatever is asked for: a batch's files travel from planner to tasks one by one.
LARGEST_BATCH_FILES = 100_000
_PATIENCE_SECONDS = 120.0
T = TypeVar("T")


def slice_limits(limit: ReadLimit, *, max_files: int, max_bytes: int) -> SliceLimits:
    """What Spark asks for, within the two limits the query declares."""
    match limit:
        case ReadAllAvailable():
            return SliceLimits(max_files=LARGEST_BATCH_FILES, max_bytes=None)
        case ReadMaxFiles(files) | ReadMaxRows(files):
            return SliceLimits(max_files=files, max_bytes=max_bytes)
        case ReadMaxBytes(size):
            return SliceLimits(max_files=max_files, max_bytes=size)
    return SliceLimits(max_files=max_files, max_bytes=max_bytes)


def patiently(call: Callable[[], T]) -> T:
    """Call until it succeeds, fails for good, or has failed for two minutes; its last error is raised."""
    return through_outages(call, patience_seconds=_PATIENCE_SECONDS)
