"""Detects the time patterns that sampled texts match; an ambiguous date matches several.

Only the order of day, month and year can be ambiguous. The result does not depend on the order of texts.
"""

from __future__ import annotations

import re
from typing import Final

from deltaworks.events.time_patterns import NoMatch, pattern_reader
from deltaworks.specs.times import parse_pattern

#: Orders of numeric dates. `2026/01/31` never means month 31.
_DATE_ORDERS = ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y", "%Y{0}%m{0}%d", "%d{0}%m{0}%y", "%m{0}%d{0}%y", "%y{0}%m{0}%d")
DATE_PATTERNS: Final = (
    *(order.format(separator) for separator in "/.-" for order in _DATE_ORDERS),
    "%d/%b/%Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%y-%b-%d",
    "%Y-%b-%d",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%a, %d %b %Y",
    "%A, %d-%b-%y",
)
#: Patterns with the date in the middle, or without separators.
DATETIME_PATTERNS: Final = (
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S UTC %Y",
    "%Y%m%dT%H%M%S%z",
    "%Y%m%dT%H%M%S",
)
_MAX_TEXT_LENGTH = 48
_DATE_AND_TIME = re.compile(
    r"(?P<date>.{6,}?)(?P<gap>, |[ T:])\d{1,2}:\d\d(?P<seconds>:\d\d(?:(?P<point>[.,])\d{1,6})?)?"
    r"(?P<half> ?[AaPp][Mm])?(?P<zone> ?[+-]\d\d:?\d\d| ?Z| UTC| GMT)?",
    re.ASCII,
)


def matching_patterns(text: str) -> tuple[str, ...]:
    """Returns all known patterns that match a text."""
    if len(text) > _MAX_TEXT_LENGTH or not any(character.isdigit() for character in text):
        return ()
    match = _DATE_AND_TIME.fullmatch(text)
    date_text, time_directives = (text, "") if match is None else (match["date"], _time_directives(match))
    patterns = (date + time_directives for date in DATE_PATTERNS if _matches(date, date_text))
    return tuple(pattern for pattern in (*patterns, *DATETIME_PATTERNS) if _matches(pattern, text))


def narrow_patterns(patterns: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Returns those of the patterns that also match another text."""
    return tuple(pattern for pattern in patterns if _matches(pattern, text))


def is_date_only(pattern: str) -> bool:
    """Returns whether a pattern contains no time of day."""
    return not parse_pattern(pattern).has_time_of_day


def has_utc_offset(pattern: str) -> bool:
    """Returns whether a pattern contains a UTC offset or zone."""
    return parse_pattern(pattern).has_offset or bool(re.search(r" (UTC|GMT)\b", pattern))


def _time_directives(match: re.Match[str]) -> str:
    half, zone, point = match["half"], match["zone"] or "", match["point"]
    hour = "%I" if half else "%H"
    seconds = ":%S" if match["seconds"] else ""
    fraction = f"{point}%f" if point else ""
    half_directive = f"{' ' * half.startswith(' ')}%p" if half else ""
    if zone and zone[1:] not in ("UTC", "GMT"):
        zone = f"{' ' * zone.startswith(' ')}%z"
    return f"{match['gap']}{hour}:%M{seconds}{fraction}{half_directive}{zone}"


def _matches(pattern: str, text: str) -> bool:
    try:
        pattern_reader(pattern).read(text)
    except (NoMatch, ValueError, OverflowError):
        return False
    return True
