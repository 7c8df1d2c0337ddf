"""Reads the start and end offset of a batch, which Spark wrote for a query of the source."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations

#: Start and end offset of a batch, as Spark wrote them for a query of the source.
OffsetRange = tuple[dict[str, Any], dict[str, Any]]
#: Reads the end offset of a Spark batch.
EndOffsetReader = Callable[[Generations, int], dict[str, Any]]


class OffsetRanges:
    """Reads the offset range of batches and caches the last one. Not thread-safe."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._last: tuple[tuple[Generations, int], OffsetRange] | None = None

    def read(self, generations: Generations, spark_batch_id: int, *, read_end_offset: EndOffsetReader) -> OffsetRange:
        """Returns the batch's start and end offset. For a query's first batch the start is where the query began; empty
        if it began with all available input.
        """
        batch = (generations, spark_batch_id)
        if self._last is None or self._last[0] != batch:
            end = read_end_offset(generations, spark_batch_id)
            if spark_batch_id:
                start = read_end_offset(generations, spark_batch_id - 1)
            else:
                start = generations.current.start or initial_offset(self._home, generations)
            self._last = (batch, (start, end))
        return self._last[1]


def initial_offset(home: PipelineHome, generations: Generations) -> dict[str, Any]:
    """Returns the offsets at which the query began, which Spark's Kafka source records; empty for other sources."""
    folder = paths.checkpoint(home.pipeline, generations.generation, generations.current.ordinal)
    stored = home.objects.get(f"{folder}/sources/0/0")
    if stored is None or b"{" not in stored.data:
        return {}
    # The offset follows a byte and a version number.
    offset = json.loads(stored.data[stored.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}
