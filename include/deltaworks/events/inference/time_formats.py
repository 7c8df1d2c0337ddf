"""The patterns of times that samples fit, out of those that are tried; never one of two that say different days.

A text fits at most a few: how its time of day and its offset are written can be seen, and only the order of day, month
and year can mean several things. Which patterns a column fits does not depend on the order of its texts.
"""

from __future__ import annotations

import re
from typing import Final

from deltaworks.events.time_patterns import NoMatch, pattern_reader
from deltaworks.specs.times import parse_pattern

#: The orders in which three numbers make a date; of `2026/01/31` nobody means the 31 to be a month.
_ORDERS = ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y", "%Y{0}%m{0}%d", "%d{0}%m{0}%y", "%m{0}%d{0}%y", "%y{0}%m{0}%d")
DATES: Final = (
    *(order.format(separator) for separator in "/.-" for order in _ORDERS),
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
#: Times that are written with the date in their middle, or without anything between their numbers.
WHOLE: Final = (
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S UTC %Y",
    "%Y%m%dT%H%M%S%z",
    "%Y%m%dT%H%M%S",
)
_LONGEST = 48
_TAIL = re.compile(
    r"(?P<date>.{6,}?)(?P<gap>, |[ T:])\d{1,2}:\d\d(?P<seconds>:\d\d(?:(?P<point>[.,])\d{1,6})?)?"
    r"(?P<half> ?[AaPp][Mm])?(?P<zone> ?[+-]\d\d:?\d\d| ?Z| UTC| GMT)?",
    re.ASCII,
)


def fitting(text: str) -> tuple[str, ...]:
    """Every pattern that is tried and fits a text."""
    if len(text) > _LONGEST or not any(character.isdigit() for character in text):
        return ()
    match = _TAIL.fullmatch(text)
    before, behind = (text, "") if match is None else (match["date"], _directives(match))
    patterns = (date + behind for date in DATES if _fits(date, before))
    return tuple(pattern for pattern in (*patterns, *WHOLE) if _fits(pattern, text))


def still_fitting(patterns: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Those of the patterns that fit one more text."""
    return tuple(pattern for pattern in patterns if _fits(pattern, text))


def is_of_date_alone(pattern: str) -> bool:
    """Whether texts of a pattern say no more than a day."""
    return not parse_pattern(pattern).has_time_of_day


def names_offset(pattern: str) -> bool:
    """Whether texts of a pattern say by which clocks they are, as an offset or as UTC."""
    return parse_pattern(pattern).has_offset or bool(re.search(r" (UTC|GMT)\b", pattern))


def _directives(match: re.Match[str]) -> str:
    half, zone, point = match["half"], match["zone"] or "", match["point"]
    hour = "%I" if half else "%H"
    seconds = ":%S" if match["seconds"] else ""
    fraction = f"{point}%f" if point else ""
    behind = f"{' ' * half.startswith(' ')}%p" if half else ""
    if zone and zone[1:] not in ("UTC", "GMT"):
        zone = f"{' ' * zone.startswith(' ')}%z"
    return f"{match['gap']}{hour}:%M{seconds}{fraction}{behind}{zone}"


def _fits(pattern: str, text: str) -> bool:
    try:
        pattern_reader(pattern).read(text)
    except (NoMatch, ValueError, OverflowError):
        return False
    return True
