"""Keys of the summaries that console pages read."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.privacy.paths import control_path


def recent_batches(pipeline: str) -> str:
    """Returns the key of the last batches and problems of a pipeline's stream."""
    return paths.pipeline_control(pipeline, "recent.json")


def stream_hours(pipeline: str) -> str:
    """Returns the key of hourly totals of a pipeline's stream."""
    return paths.pipeline_control(pipeline, "hours.json")


def tables_summary(pipeline: str) -> str:
    """Returns the key of the newest health snapshot of each table of a pipeline."""
    return paths.pipeline_control(pipeline, "tables.json")


def nights_summary(pipeline: str) -> str:
    """Returns the key of the last nightly maintenance runs of a pipeline."""
    return paths.pipeline_control(pipeline, "nights.json")


def quarantine_summary(pipeline: str) -> str:
    """Returns the key of counts of the open rows in a pipeline's quarantine."""
    return paths.pipeline_control(pipeline, "quarantine.json")


def silences() -> str:
    """Returns the folder of silences."""
    return paths.alerts("silences/")


def silence(silence_id: str) -> str:
    """Returns the key of one silence."""
    return f"{silences()}{silence_id}.json"


def mutations_summary(pipeline: str) -> str:
    """Returns the key of the last mutation batches of a pipeline, and the number of pending requests."""
    return paths.pipeline_control(pipeline, "mutations.json")


def erasures_summary(namespace: str) -> str:
    """Returns the key of the erasure requests of a namespace: states and deadlines."""
    return control_path(namespace, "erasures.json")


def replayed_throughput(control: str) -> str:
    """Returns the key of counts of recently quarantined events that were replayed since."""
    return f"{control}/replayed_throughput.json"
