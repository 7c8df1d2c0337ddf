"""Control objects of a stream group: its stop flag and its driver's backoff.

Everything else is stored per pipeline, in the control folders of its members.
"""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore


def group_stop_flag(objects: ObjectStore, group: str) -> StopFlag:
    """Returns the flag that stops a group's driver and prevents the next one from starting."""
    return StopFlag(objects, paths.stop_request(paths.group_control(group)))


def group_backoff(objects: ObjectStore, group: str) -> RestartBackoff:
    """Returns the backoff of a group's driver, which counts failures that end all members."""
    return RestartBackoff(objects, paths.failures(paths.group_control(group)))
