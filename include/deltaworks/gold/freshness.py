"""When a gold table was last found to be up to date with its inputs: one small object, which the health check reads."""

from __future__ import annotations

import json
from datetime import datetime

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore


def note_fresh(objects: ObjectStore, pipeline: str, table: str, *, now: datetime | None = None) -> None:
    """Say that a build has just brought the table up to date, or found that it is."""
    at = now.isoformat() if now else iso_now()
    objects.put(paths.gold_state(pipeline, table), json.dumps({"at": at}).encode())
