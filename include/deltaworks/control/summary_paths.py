"""Where the small summaries lie that pages read, beside what `deltaworks.control.paths` has."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.privacy.paths import privacy_control


def recent_batches(pipeline: str) -> str:
    """The object with the last batches and problems of a pipeline's stream."""
    return paths.pipeline_control(pipeline, "recent.json")


def stream_hours(pipeline: str) -> str:
    """The object with what a pipeline's stream did in each of the last hours."""
    return paths.pipeline_control(pipeline, "hours.json")


def tables_summary(pipeline: str) -> str:
    """The object with the newest snapshot of each table of a pipeline."""
    return paths.pipeline_control(pipeline, "tables.json")


def nights_summary(pipeline: str) -> str:
    """The object with the last nights of a pipeline's maintenance."""
    return paths.pipeline_control(pipeline, "nights.json")


def quarantine_summary(pipeline: str) -> str:
    """The object with the open rows of a pipeline's quarantine, counted."""
    return paths.pipeline_control(pipeline, "quarantine.json")


def silences() -> str:
    """The folder of silences."""
    return paths.alerts("silences/")


def silence(silence_id: str) -> str:
    """The object of one silence."""
    return f"{silences()}{silence_id}.json"


def mutations_summary(pipeline: str) -> str:
    """The object with the last mutation batches of a pipeline, and the requests that wait."""
    return paths.pipeline_control(pipeline, "mutations.json")


def erasures_summary(namespace: str) -> str:
    """The object with the requests of a namespace to be erased, their states and terms."""
    return privacy_control(namespace, "erasures.json")


def replayed_throughput(control: str) -> str:
    """The object that says how much of what a stream has lately put into quarantine has landed since."""
    return f"{control}/replayed_throughput.json"
