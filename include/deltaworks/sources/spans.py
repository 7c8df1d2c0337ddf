"""Between which offsets of its source a batch lies."""

from __future__ import annotations

import json
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations

#: The offsets between which a batch lies: start and end, as Spark wrote them for a query of the source.
Span = tuple[dict[str, Any], dict[str, Any]]


def batch_span(home: PipelineHome, batch_id: int) -> Span:
    """Between which offsets a batch lies, as Spark's own checkpoint has them. `batch_id` is ours, of the one in use.

    Raises:
        TransientError: OFFSET_LOG_UNREADABLE.
    """
    generations = home.generations.effective()
    spark_batch_id = batch_id - generations.current.first_batch
    end = home.generations.end_offset(generations, spark_batch_id)
    if spark_batch_id:
        return home.generations.end_offset(generations, spark_batch_id - 1), end
    return generations.current.start or initial_offset(home, generations), end


def initial_offset(home: PipelineHome, generations: Generations) -> dict[str, Any]:
    """Where Kafka's topics began when the query did, which Spark's source notes; nothing for other sources."""
    folder = paths.checkpoint(home.pipeline, generations.generation, generations.current.ordinal)
    note = home.objects.get(f"{folder}/sources/0/0")
    if note is None or b"{" not in note.data:
        return {}
    # A byte and a version stand before it.
    offset = json.loads(note.data[note.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}
