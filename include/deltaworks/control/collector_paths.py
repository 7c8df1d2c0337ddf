"""Where a collector's records lie in the lake, beside what `deltaworks.control.paths` says of all others."""

from __future__ import annotations


def collector_control(collector: str, name: str = "") -> str:
    """A collector's control folder, or one thing in it: `losses.json`, `<id of a process>/heartbeat.json`, …"""
    return f"control/collectors/{collector}/{name}".rstrip("/")
