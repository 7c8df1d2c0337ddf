"""Where the small summaries lie that pages read, beside what `deltaworks.control.paths` has."""

from __future__ import annotations

from deltaworks.control import paths


def recent_batches(pipeline: str) -> str:
    """The object with the last batches and problems of a pipeline's stream."""
    return paths.pipeline_control(pipeline, "recent.json")


def stream_hours(pipeline: str) -> str:
    """The object with what a pipeline's stream did in each of the last hours."""
    return paths.pipeline_control(pipeline, "hours.json")
