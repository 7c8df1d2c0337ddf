"""Between which offsets of its source a batch lies, as Spark's own checkpoint has them."""

from __future__ import annotations

import json
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations

Span = tuple[dict[str, Any], dict[str, Any]]


def batch_span(home: PipelineHome, batch_id: int) -> Span:
    """Where the batch starts and ends. `batch_id` is ours, of the checkpoint in use.

    Raises:
        TransientError: OFFSET_LOG_UNREADABLE.
    """
    recorded = home.generations.effective()
    spark_batch_id = batch_id - recorded.current.first_batch
    end = home.generations.end_offset(recorded, spark_batch_id)
    if spark_batch_id:
        return home.generations.end_offset(recorded, spark_batch_id - 1), end
    return recorded.current.start or _initial_offset(home, recorded), end


def _initial_offset(home: PipelineHome, recorded: Generations) -> dict[str, Any]:
    """Where Kafka's source found its topics to begin when the query did; nothing for sources that keep no such note."""
    folder = paths.checkpoint(home.pipeline, recorded.generation, recorded.current.ordinal)
    found = home.objects.get(f"{folder}/sources/0/0")
    if found is None or b"{" not in found.data:
        return {}
    # A byte and a version stand before it.
    offset = json.loads(found.data[found.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}
