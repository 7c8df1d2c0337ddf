"""Where feeds and remediations keep what they keep: the part of `deltaworks.control.paths` that is about others."""

from __future__ import annotations

from deltaworks.control.paths import pipeline_control

#: The folder of all remediations, with an object for each notification that one has taken up.
REMEDIATIONS_FOLDER = "control/remediations"


def feeds_control(pipeline: str) -> str:
    """The control folder of the process that delivers a pipeline's feeds: its lease, heartbeat and stop flag."""
    return pipeline_control(pipeline, "feeds")


def feed(pipeline: str, name: str, entry: str = "") -> str:
    """The folder of a feed, or one thing in it: `position.json`, `deliveries/<number>.json`, `dead/<...>.json`."""
    return f"{feeds_control(pipeline)}/{name}/{entry}".rstrip("/")


def remediation_control(name: str) -> str:
    """The control folder of the process of one remediation: its lease, heartbeat and stop flag."""
    return f"control/remediators/{name}"


def remediation(notification: str) -> str:
    """The object that says what was done about a notification."""
    return f"{REMEDIATIONS_FOLDER}/{notification}.json"


def remediation_hold(name: str) -> str:
    """The object that holds a remediation back until somebody lets it go on."""
    return f"{remediation_control(name)}/hold.json"


def unusable_message(name: str, message_id: str) -> str:
    """A message of a remediation's queue that says nothing it could act on."""
    return f"{remediation_control(name)}/unusable/{message_id}.json"
