"""Parses the time span that a dashboard shows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from deltaworks.charts.drawing import Span
from deltaworks.control.clock import parse_iso, parse_range_end, utc_now
from deltaworks.errors import ConfigError
from deltaworks.specs.dashboards import DashboardSpec


def parse_span(dashboard: DashboardSpec, *, since: str = "", until: str = "") -> Span:
    """Parses a span from dates or times in UTC.

    Args:
        since: start; empty for the declared number of hours before the end.
        until: last date (included), or end as a time; empty for now.

    Raises:
        ConfigError: DASHBOARD_SPAN_INVALID, a time is invalid, or the end is not after the start.
    """
    end = _parse_instant(until, parse_range_end) or utc_now()
    start = _parse_instant(since)
    try:
        start = start if start is not None else end - dt.timedelta(hours=dashboard.hours)
    except OverflowError:
        raise _invalid_error(
            f"{until} is too early: the dashboard shows {dashboard.hours:g} hours before it."
        ) from None
    if start >= end:
        raise _invalid_error(f"{start:%Y-%m-%d %H:%M} is not before {end:%Y-%m-%d %H:%M} UTC.")
    return Span(start, end)


def _parse_instant(text: str, parse: Callable[[str], dt.datetime | None] = parse_iso) -> dt.datetime | None:
    try:
        instant = parse(text.strip())
        return None if instant is None else instant.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise _invalid_error(f"{text!r} is not a date or time.") from None


def _invalid_error(message: str) -> ConfigError:
    return ConfigError("DASHBOARD_SPAN_INVALID", message)
