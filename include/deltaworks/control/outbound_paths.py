"""Keys of feeds and remediations."""

from __future__ import annotations

from deltaworks.control.paths import pipeline_control

#: The folder of all remediations, with an object for each handled notification.
REMEDIATIONS_FOLDER = "control/remediations"


def feeds_control(pipeline: str) -> str:
    """Returns the control folder of a pipeline's feed process: lease, heartbeat and stop flag."""
    return pipeline_control(pipeline, "feeds")


def feed(pipeline: str, name: str, entry: str = "") -> str:
    """Returns the folder of a feed, or one key in it: `position.json`, `deliveries/<number>.json`,
    `dead/<...>.json`."""
    return f"{feeds_control(pipeline)}/{name}/{entry}".rstrip("/")


def remediation_control(name: str) -> str:
    """Returns the control folder of one remediation's process: lease, heartbeat and stop flag."""
    return f"control/remediators/{name}"


def remediation(notification: str) -> str:
    """Returns the key of the record of the action taken for a notification."""
    return f"{REMEDIATIONS_FOLDER}/{notification}.json"


def remediation_hold(name: str) -> str:
    """Returns the key of the object that pauses a remediation until a person resumes it."""
    return f"{remediation_control(name)}/hold.json"


def unusable_message(name: str, message_id: str) -> str:
    """Returns the key of a stored message from a remediation's queue that could not be parsed."""
    return f"{remediation_control(name)}/unusable/{message_id}.json"
