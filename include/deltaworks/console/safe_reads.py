"""Reads that return None instead of failing a page: for damaged, incompatible or unreadable data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from deltaworks.control.clock import parse_iso
from deltaworks.errors import DeltaworksError

T = TypeVar("T")


def read_or_none(read: Callable[[], T]) -> T | None:
    """Returns the result of a read, or None if it fails. The page's banner reports storage errors."""
    try:
        return read()
    except (DeltaworksError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parse_instant(text: Any) -> datetime | None:
    """Returns the instant of a record, or None."""
    return read_or_none(lambda: parse_iso(text))
