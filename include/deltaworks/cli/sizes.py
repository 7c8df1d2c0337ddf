"""Counts of bytes as people read them."""

from __future__ import annotations


def readable_bytes(count: float) -> str:
    """A count of bytes with a unit; one below zero keeps its sign."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{sign}{count:.0f} {unit}" if unit == "B" else f"{sign}{count:.1f} {unit}"
        count /= 1024
    return f"{sign}{count:.1f} TiB"
