"""The span of time that a dashboard is drawn for."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.errors import ConfigError
from deltaworks.specs.dashboards import DashboardSpec


@dataclass(frozen=True, slots=True)
class Span:
    """From one time up to but not including another, both aware."""

    since: dt.datetime
    until: dt.datetime


def parse_span(dashboard: DashboardSpec, *, since: str = "", until: str = "") -> Span:
    """The span between two dates or times in UTC, as people write them.

    Args:
        since: empty for as far before the end as the dashboard declares.
        until: empty for now.

    Raises:
        ConfigError: DASHBOARD_SPAN_INVALID, one is no time, or the end is not after the start.
    """
    end = _parse_instant(until) or utc_now()
    start = _parse_instant(since)
    try:
        start = start if start is not None else end - dt.timedelta(hours=dashboard.hours)
    except OverflowError:
        raise _invalid_error(f"There is no time {dashboard.hours:g} hours before {until}.") from None
    if start >= end:
        raise _invalid_error(f"{start:%Y-%m-%d %H:%M} is not before {end:%Y-%m-%d %H:%M} UTC.")
    return Span(start, end)


def _parse_instant(text: str) -> dt.datetime | None:
    try:
        instant = parse_iso(text.strip())
        return None if instant is None else instant.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise _invalid_error(f"{text!r} is no date and no time.") from None


def _invalid_error(message: str) -> ConfigError:
    return ConfigError(
        "DASHBOARD_SPAN_INVALID",
        message,
        hint="Write dates as YYYY-MM-DD and times as YYYY-MM-DDTHH:MM, in UTC, the earlier one as the start.",
    )
