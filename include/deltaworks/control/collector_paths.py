"""Keys of a collector's records in the lake."""

from __future__ import annotations


def collector_control(collector: str, name: str = "") -> str:
    """Returns the control folder of a collector, or one key in it: `losses.json`, `<process id>/heartbeat.json`, …"""
    return f"control/collectors/{collector}/{name}".rstrip("/")
