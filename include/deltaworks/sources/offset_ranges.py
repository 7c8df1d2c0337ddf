"""Between which offsets of its source a batch lies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations

#: The offsets between which a batch lies: start and end, as Spark wrote them for a query of the source.
OffsetRange = tuple[dict[str, Any], dict[str, Any]]
#: Where one of Spark's batches ends.
EndOffsetReader = Callable[[Generations, int], dict[str, Any]]


class OffsetRanges:
    """Reads between which offsets batches lie, one that is asked for again only once. Used by one thread."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._last: tuple[tuple[Generations, int], OffsetRange] | None = None

    def read(self, generations: Generations, spark_batch_id: int, *, read_end_offset: EndOffsetReader) -> OffsetRange:
        """What `end_of` says of the batch and the one before. The first one's start is empty where its query begins
        with what the source has."""
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
    """Where Kafka's topics began when the query did, which Spark's source notes; nothing for other sources."""
    folder = paths.checkpoint(home.pipeline, generations.generation, generations.current.ordinal)
    note = home.objects.get(f"{folder}/sources/0/0")
    if note is None or b"{" not in note.data:
        return {}
    # A byte and a version stand before it.
    offset = json.loads(note.data[note.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}
