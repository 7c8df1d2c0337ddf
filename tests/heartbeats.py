"""Heartbeats of healthy streams and relays."""

from __future__ import annotations

from typing import Any

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.objects import ObjectStore


def healthy_heartbeat(pipeline: str = "shop", *, at: str = "", **fields: Any) -> Heartbeat:
    """Returns the heartbeat of a process that started and was written at this time, by default now."""
    now = at or iso_now()
    defaults = {"owner": "o", "epoch": 1, "run": "r", "state": "running", "trigger_seconds": 60}
    return Heartbeat(**{"pipeline": pipeline, "written_at": now, "started_at": now} | defaults | fields)


def put_heartbeat(objects: ObjectStore, folder: str, pipeline: str = "shop", *, at: str = "", **fields: Any) -> None:
    """Writes the heartbeat of a control folder."""
    objects.put(paths.heartbeat(folder), healthy_heartbeat(pipeline, at=at, **fields).encode())
