"""Formats values for dashboards: numbers with units, times in UTC, ages."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Final

from deltaworks.specs.dashboards import Unit

_THOUSANDS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_SECONDS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MAX_TEXT_LENGTH = 200


def to_number(value: Any) -> float | None:
    """Converts a result value to a number; None for null and non-finite values.

    Raises:
        TypeError: the value is not a number.
    """
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float | Decimal):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    number = float(value)
    return number if math.isfinite(number) else None


def format_short(value: float, unit: Unit | None) -> str:
    """Formats a number for an axis, with few digits."""
    if unit in ("bytes", "seconds", "milliseconds"):
        return _format_scaled(value, unit)
    for size, letter in _THOUSANDS:
        if abs(value) >= size:
            return f"{_format_digits(value / size, 3)}{letter}{_suffix(unit)}"
    return f"{_format_digits(value, 3)}{_suffix(unit)}"


def format_full(value: float, unit: Unit | None) -> str:
    """Formats a number for a table or tooltip, with more digits."""
    if unit in ("bytes", "seconds", "milliseconds"):
        return _format_scaled(value, unit)
    if unit == "money":
        return f"{value:,.2f}"
    text = f"{value:,.0f}" if value == int(value) or abs(value) >= 10_000 else _format_digits(value, 4)
    return f"{text}{_suffix(unit)}"


def _suffix(unit: Unit | None) -> str:
    return {"percent": " %", "per_second": "/s"}.get(unit or "", "")


def _format_scaled(value: float, unit: Unit) -> str:
    """Formats a number with a unit prefix."""
    if value == 0:
        return {"bytes": "0 B", "seconds": "0 s"}.get(unit, "0 ms")
    value = value / 1000 if unit == "milliseconds" else value
    smallest = "B" if unit == "bytes" else "s"
    for size, name in _BYTES if unit == "bytes" else _SECONDS:
        if abs(value) >= size:
            return f"{_format_digits(value / size, 3)} {name}"
    return f"{_format_digits(value, 3)} {smallest}"


def _format_digits(value: float, digits: int) -> str:
    """Formats significant digits without trailing zeros or exponent."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_cell(value: Any, unit: Unit | None = None) -> str:
    """Formats any result value as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Decimal) and unit is None and value.is_finite():
        return f"{value:,f}"
    if isinstance(value, int | float | Decimal):
        return format_full(float(value), unit) if math.isfinite(value) else str(value)
    if isinstance(value, dt.datetime):
        return format_time(value)
    text = str(value)
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"


def to_utc(value: dt.datetime) -> dt.datetime:
    """Converts a timestamp to UTC. Timestamps without a zone are taken as UTC."""
    return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


def format_time(value: dt.datetime) -> str:
    """Formats a time in UTC, with seconds unless they are zero."""
    value = to_utc(value)
    return f"{value:%Y-%m-%d %H:%M:%S}" if value.second or value.microsecond else f"{value:%Y-%m-%d %H:%M}"


def format_age(seconds: float) -> str:
    """Formats an age, for example `40 s`, `12 min`, `5 h` or `3 days`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:,.0f} days"
