"""Formats values for people: ages, bytes, counts, shares. Used as template filters."""

from __future__ import annotations

from datetime import UTC, datetime

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
NO_VALUE = "\u2013"


def seconds_text(seconds: float | None) -> str:
    """Formats a duration with at most two digits and a unit: `0.4 s`, `41 s`, `41 min`, `6.5 h`, `6 d`."""
    if seconds is None:
        return NO_VALUE
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h".replace(".0 ", " ")
    return f"{seconds / 86_400:.0f} d"


def age_text(at: datetime | None, now: datetime) -> str:
    """Formats the time since or until an instant."""
    return NO_VALUE if at is None else seconds_text(round(abs((now - at).total_seconds())))


def instant_text(at: datetime | None) -> str:
    """Formats an instant in UTC, to the second."""
    return NO_VALUE if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_text(at: datetime | None) -> str:
    """Formats the time of day of an instant, in UTC."""
    return NO_VALUE if at is None else at.astimezone(UTC).strftime("%H:%M:%S UTC")


def iso_instant(at: datetime) -> str:
    """Formats an instant for `<time datetime>`."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def bytes_text(number: float | None) -> str:
    """Formats bytes with a decimal unit: `12 kB`, `3.1 MB`."""
    if number is None:
        return NO_VALUE
    for unit in _BYTES:
        if abs(number) < 1_000 or unit == _BYTES[-1]:
            break
        number /= 1_000
    return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"


def count_text(number: float | None) -> str:
    """Formats a count with separators; fractions below 10 with one decimal place."""
    if number is None:
        return NO_VALUE
    return f"{number:,.1f}" if number != int(number) and abs(number) < 10 else f"{number:,.0f}"


def share_text(share: float | None) -> str:
    """Formats a share as percent; a small share is never shown as 0."""
    if share is None:
        return NO_VALUE
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"
