"""Between which offsets of its source a batch lies, as Spark's own checkpoint has them."""

from __future__ import annotations

import json
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.generations import Generations, known_generations, read_end_offset

Span = tuple[dict[str, Any], dict[str, Any]]


def batch_span(objects: ObjectStore, pipeline: str, batch_id: int) -> Span:
    """Where the batch starts and ends. `batch_id` is ours, of the checkpoint in use.

    Raises:
        TransientError: OFFSET_LOG_UNREADABLE.
    """
    known = known_generations(objects, pipeline)
    spark_batch_id = batch_id - known.current.first_batch
    end = read_end_offset(objects, pipeline, known, spark_batch_id)
    if spark_batch_id:
        return read_end_offset(objects, pipeline, known, spark_batch_id - 1), end
    return known.current.start or _initial_offset(objects, pipeline, known), end


def _initial_offset(objects: ObjectStore, pipeline: str, known: Generations) -> dict[str, Any]:
    """Where Kafka's source found its topics to begin when the query did; nothing for sources that keep no such note."""
    folder = paths.checkpoint(pipeline, known.generation, known.current.ordinal)
    found = objects.get(f"{folder}/sources/0/0")
    if found is None or b"{" not in found.data:
        return {}
    # A byte and a version stand before it.
    offset = json.loads(found.data[found.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}
