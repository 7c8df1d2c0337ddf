"""Formats of event times: epoch, ISO 8601 or a strptime pattern, and the zone for texts without an offset.

Patterns are those of strptime, as in DuckDB and the log formats of web servers. Names of months and days are English,
independent of locale and time zone of the machine.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from deltaworks.specs.spec_change_effects import Edit, Effect

TimeUnit = Literal["epoch_seconds", "epoch_millis", "iso8601"]

CHANGES_TIMES = Edit(
    Effect.MIXED_ROWS,
    "Earlier rows keep times in the old format. Accept it with `deltaworks pipelines diff {pipeline} --accept` "
    "and restart. `deltaworks quarantine replay {pipeline}` commits quarantined rows; `deltaworks reprocess "
    "{pipeline} --from-start` re-reads committed rows.",
)

#: The date or time component of each directive. A pattern may contain a component only once.
_COMPONENTS = {
    "Y": "year",
    "y": "year",
    "m": "month",
    "b": "month",
    "B": "month",
    "d": "day",
    "a": "weekday",
    "A": "weekday",
    "H": "hour",
    "I": "hour",
    "p": "AM/PM",
    "M": "minute",
    "S": "second",
    "f": "fraction of a second",
    "z": "offset",
}
#: What to write in place of unsupported directives.
_ALTERNATIVES = {
    "T": "write %H:%M:%S",
    "F": "write %Y-%m-%d",
    "D": "write %m/%d/%y",
    "R": "write %H:%M",
    "e": "write %d, which also accepts one digit",
    "h": "write %b",
    "Z": "write GMT or UTC literally, and declare `zone` for others",
    "s": "declare unit: epoch_seconds",
}
#: Directives that are only valid together with one of the listed ones.
_REQUIRED_WITH = (("I", "p"), ("p", "I"), ("M", "HI"), ("S", "M"), ("f", "S"))
#: strptime directives for the letters of Spark's and Java's patterns. A single letter stands for any number of them.
_SPARK_LETTERS = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MMMM": "%B",
    "MMM": "%b",
    "M": "%m",
    "EEEE": "%A",
    "E": "%a",
    "d": "%d",
    "H": "%H",
    "h": "%I",
    "m": "%M",
    "s": "%S",
    "S": "%f",
    "a": "%p",
    "X": "%z",
    "x": "%z",
    "Z": "%z",
}
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)
#: Zones that depend on the machine or count leap seconds.
_UNPORTABLE_ZONES = re.compile(r"localtime|posixrules|Factory|(posix|right)/.*")


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A parsed strptime pattern. `parts` are directives such as `%d` and the texts between them, which contain
    no `%`."""

    text: str
    parts: tuple[str, ...]

    @property
    def has_offset(self) -> bool:
        """Whether the pattern contains a UTC offset."""
        return "%z" in self.parts

    @property
    def has_time_of_day(self) -> bool:
        """Whether the pattern contains a time of day."""
        return "%H" in self.parts or "%I" in self.parts


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> TimePattern:
    """Parses a strptime pattern.

    Raises:
        ValueError: it is invalid or contains no complete date; the message says what to write.
    """
    parts: list[str] = []
    end = 0
    for match in _DIRECTIVE.finditer(text):
        parts += [text[end : match.start()], _directive(match.group(1), text)]
        end = match.end()
    parts.append(text[end:])
    pattern = TimePattern(text, tuple(part for part in parts if part))
    _check(pattern)
    return pattern


def _directive(letter: str, text: str) -> str:
    if letter in _COMPONENTS:
        return f"%{letter}"
    advice = _ALTERNATIVES.get(letter, "known directives: " + ", ".join(f"%{name}" for name in _COMPONENTS))
    raise ValueError(f"%{letter} in {text!r} is not a directive; {advice}")


def _check(pattern: TimePattern) -> None:
    letters = [part[1] for part in pattern.parts if part[0] == "%"]
    components = [_COMPONENTS[letter] for letter in letters]
    if not letters:
        suggested = _spark_to_strptime(pattern.text)
        advice = f"did you mean {suggested!r}?" if suggested else "write, for example, %d/%b/%Y:%H:%M:%S %z"
        raise ValueError(f"{pattern.text!r} has no strptime directive; {advice}")
    for name in ("year", "month", "day"):
        if name not in components:
            raise ValueError(f"{pattern.text!r} has no {name}, which a date needs")
    repeated = next((name for name in components if components.count(name) > 1), None)
    if repeated:
        raise ValueError(f"{pattern.text!r} has two directives for the {repeated}")
    for letter, others in _REQUIRED_WITH:
        if letter in letters and not set(others) & set(letters):
            raise ValueError(f"%{letter} in {pattern.text!r} requires %{' or %'.join(others)}")


def _spark_to_strptime(text: str) -> str | None:
    """Converts a Spark pattern to strptime. Returns None if the text is no Spark pattern."""

    def directive(match: re.Match[str]) -> str:
        quoted, letters = match.group(1), match.group(0)
        return quoted if quoted is not None else _SPARK_LETTERS.get(letters) or _SPARK_LETTERS[letters[0]]

    try:
        suggested = re.sub(r"'([^']*)'|([A-Za-z])\2*", directive, text)
        return parse_pattern(suggested).text if "%" in suggested else None
    except (KeyError, ValueError):
        return None


def _check_pattern(value: str) -> str:
    parse_pattern(value)
    return value


def _check_zone(value: str) -> str:
    try:
        if _UNPORTABLE_ZONES.fullmatch(value):
            raise ValueError
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        nearest = difflib.get_close_matches(value, zoneinfo.available_timezones(), n=1, cutoff=0.5)
        advice = f"did you mean {nearest[0]!r}?" if nearest else "write one such as Europe/Berlin"
        raise ValueError(f"there is no time zone {value!r}; {advice}") from None
    return value


PatternText = Annotated[str, AfterValidator(_check_pattern)]
ZoneName = Annotated[str, AfterValidator(_check_zone)]


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """The time format of a column."""

    unit: TimeUnit = "iso8601"
    format: str | None = None
    zone: str | None = None

    @property
    def pattern(self) -> TimePattern | None:
        """The parsed strptime pattern; None for epoch and ISO 8601 formats."""
        return None if self.format is None else parse_pattern(self.format)


ISO_8601 = TimeFormat()


def time_format_problems(time_format: TimeFormat) -> Iterator[tuple[str, str]]:
    """Yields contradictions in a time format, each as key and message."""
    pattern = time_format.pattern
    if pattern is not None and time_format.unit != "iso8601":
        yield "format", f"it conflicts with unit: {time_format.unit}; remove one of them"
    if time_format.zone is not None and time_format.unit != "iso8601":
        yield "zone", f"{time_format.unit} is in UTC, independent of the zone; remove it"
    if time_format.zone is not None and pattern is not None and pattern.has_offset:
        yield "zone", "the pattern contains the offset, %z; remove it"
