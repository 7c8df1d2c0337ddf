"""Test data of a shop: its declaration without gold, and events."""

from __future__ import annotations

import datetime as dt
from typing import Any

SHOP = """\
pipeline: shop
description: a shop
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}, id: id}
tables:
  - name: events
    catch_all: true
    columns: [{name: device_id, path: device, type: string}]
"""
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)


def event(day: int, event_id: str | None, device: str | None = "d1", **more: Any) -> dict[str, Any]:
    """Returns an event some days after START."""
    return {"event_id": event_id, "event_time": START + dt.timedelta(days=day), "device_id": device, **more}
