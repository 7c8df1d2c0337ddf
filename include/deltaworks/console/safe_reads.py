"""Reads that break no page: what is torn, of another release, or cannot be read is absent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from deltaworks.control.clock import parse_iso
from deltaworks.errors import DeltaworksError

T = TypeVar("T")


def read_or_none(read: Callable[[], T]) -> T | None:
    """What is read; None where it cannot be, which the banner of the page says where the storage is to blame."""
    try:
        return read()
    except (DeltaworksError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parse_instant(text: Any) -> datetime | None:
    """The instant that a record names; None where it names none."""
    return read_or_none(lambda: parse_iso(text))
