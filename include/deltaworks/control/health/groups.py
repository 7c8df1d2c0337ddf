"""What is on record of a group of streams as a whole: its stop flag, and the failures of its driver.

Everything else is of its members, each in the control folder of its pipeline.
"""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore


def group_stop_flag(objects: ObjectStore, group: str) -> StopFlag:
    """The flag that ends a group's driver, and keeps the next one from starting its members."""
    return StopFlag(objects, paths.stop_request(paths.group_control(group)))


def group_backoff(objects: ObjectStore, group: str) -> RestartBackoff:
    """The back-off of a group's driver, for what ends all of its members at once."""
    return RestartBackoff(objects, f"{paths.group_control(group)}/failures.json")
