"""Parses times by a pattern of strptime directives, exact to the microsecond, and converts local times to instants.

Most texts of a column have the same layout: the same directives at the same offsets. These are parsed together from
their bytes; other texts are parsed one by one with an equivalent regular expression. Month and weekday names are
English and case-insensitive. Adjacent numbers must have all their digits, so no text is ambiguous.

A local time that occurs twice, when clocks are set back, means its first occurrence. A local time that clocks skip is
an error. Results depend on the zone database only, not on the machine's zone or locale.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.specs.times import TimePattern, parse_pattern

# Local times of a zone.

Integers = npt.NDArray[np.int64]
EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
DAY_US = 86_400_000_000
_SAMPLED_TIMES = (*(dt.timedelta(hours=hour) for hour in range(24)), dt.timedelta(days=1) - MICROSECOND)


class NonexistentTime(ValueError):
    """Raised for a local time that the zone's clocks skipped."""


def instant_us(local: dt.datetime, zone: str) -> int:
    """Converts a local time in `zone` to microseconds since 1970.

    Raises:
        NonexistentTime: clocks skipped this time when they were set forward.
    """
    first, second = (_offset_us(local, zone, fold) for fold in (0, 1))
    if second > first:
        raise NonexistentTime
    return (local - EPOCH) // MICROSECOND - first


def instants_us(local_us: Integers, zone: str) -> Integers:
    """Converts many local times, given as microseconds since 1970 in local time, to instants.

    Raises:
        NonexistentTime: clocks skipped one of the times.
        OverflowError: a time is outside the years 1 to 9999.
    """
    days, day_of = np.unique(local_us // DAY_US, return_inverse=True)
    offsets = [_offset_of_day_us(int(day), zone) for day in days]
    instants = local_us - np.array([offset or 0 for offset in offsets], np.int64)[day_of]
    has_transition = np.array([offset is None for offset in offsets], np.bool_)[day_of]
    for row in np.flatnonzero(has_transition):
        instants[row] = instant_us(EPOCH + int(local_us[row]) * MICROSECOND, zone)
    return instants


@lru_cache(maxsize=16_384)
def _offset_of_day_us(day: int, zone: str) -> int | None:
    """Returns the UTC offset of a local day, given as days since 1970; None if the offset changes during the day."""
    midnight = EPOCH + dt.timedelta(days=day)
    offsets = {_offset_us(midnight + time, zone, fold) for time in _SAMPLED_TIMES for fold in (0, 1)}
    return offsets.pop() if len(offsets) == 1 else None


def _offset_us(local: dt.datetime, zone: str, fold: int) -> int:
    offset = local.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset()
    return 0 if offset is None else offset // MICROSECOND


_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS_OF_MONTH = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_NUMBERS = frozenset("YymdHIMSf")
_EXPRESSIONS = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": "1[0-2]|0[1-9]",
    "b": "|".join(name[:3] for name in _MONTHS),
    "B": "|".join(_MONTHS),
    "d": r"3[01]|[12]\d|0[1-9]",
    "a": "|".join(name[:3] for name in _WEEKDAYS),
    "A": "|".join(_WEEKDAYS),
    "H": r"2[0-3]|[01]\d",
    "I": "1[0-2]|0[1-9]",
    "p": "am|pm",
    "M": r"[0-5]\d",
    "S": r"[0-5]\d",
    "f": r"\d{6}",
    "z": r"[+-](?:2[0-3]|[01]\d):?[0-5]\d|(?-i:Z)",
}
#: Forms without leading zeros, accepted if no other number is adjacent.
_UNPADDED = {"m": "[1-9]", "d": "[1-9]| [1-9]", "H": r"\d", "I": "[1-9]", "M": r"\d", "S": r"\d", "f": r"\d{1,5}"}
#: POSIX: two-digit years from 69 on belong to the 1900s.
_FIRST_YEAR_OF_1900S = 69
#: Maximum number of layouts per column. Texts with further layouts are parsed one by one.
_MAX_LAYOUTS = 8
Bytes = npt.NDArray[np.uint8]
RowMask = npt.NDArray[np.bool_]


# Parsing by a pattern.


class NoMatch(ValueError):
    """Raised if a text does not match the pattern."""


@lru_cache(maxsize=1024)
def pattern_reader(text: str) -> PatternReader:
    """Returns the reader of a pattern, cached per process."""
    return PatternReader(parse_pattern(text))


class PatternReader:
    """Parses texts by one pattern. Thread-safe.

    Results are microseconds since 1970, in UTC if texts have an offset, otherwise in local time.
    """

    def __init__(self, pattern: TimePattern) -> None:
        self.pattern = pattern
        self._expression = re.compile(_build_expression(pattern.parts), re.IGNORECASE | re.ASCII)
        #: Names of variable length have no fixed offset.
        self._has_layout = not {"%A", "%B"} & set(pattern.parts)

    def read(self, text: str) -> dt.datetime:
        """Returns the time of a text, in UTC if it has an offset.

        Raises:
            NoMatch: the pattern does not match.
            ValueError, OverflowError: the time does not exist, such as February 30.
        """
        match = self._expression.fullmatch(text)
        if match is None:
            raise NoMatch
        parts = match.groupdict()
        time = dt.datetime(
            _year(parts), _month(parts), int(parts["d"]), _hour(parts), int(parts.get("M", 0)), int(parts.get("S", 0))
        )
        time += int(parts.get("f", "").ljust(6, "0")) * MICROSECOND
        return time - _offset(parts.get("z", "Z"))

    def read_all(self, texts: pa.StringArray) -> Integers:
        """Parses texts without nulls to microseconds.

        Raises:
            NoMatch, ValueError, OverflowError: `read` fails for some text.
        """
        times = np.zeros(len(texts), np.int64)
        remaining = np.arange(len(texts))
        if self._has_layout and len(texts):
            columns = _TextBytes(texts)
            for _ in range(_MAX_LAYOUTS):
                if not remaining.size:
                    break
                remaining = self._read_layout(columns, texts, remaining, times)
        for row in remaining:
            times[row] = self._read_us(texts[int(row)].as_py())
        return times

    def _read_us(self, text: str) -> int:
        return (self.read(text) - EPOCH) // MICROSECOND

    def _read_layout(
        self, columns: _TextBytes, texts: pa.StringArray, remaining: npt.NDArray[np.int64], times: Integers
    ) -> npt.NDArray[np.int64]:
        """Parses all remaining texts that have the layout of the first one. Returns the indexes of the others."""
        text = texts[int(remaining[0])].as_py()
        match = self._expression.fullmatch(text)
        if match is None:
            raise NoMatch
        matching = np.zeros(0, np.int64)
        if text.isascii():
            matching = columns.rows_of_length(len(text), remaining)
            read, fits = _Layout(match, self.pattern.parts).read(columns.bytes_of(matching, len(text)))
            matching = matching[fits]
            times[matching] = read[fits]
        if not matching.size or matching[0] != remaining[0]:
            times[remaining[0]] = self._read_us(text)
            matching = np.append(matching, remaining[0])
        return (
            remaining[~np.isin(remaining, matching, assume_unique=True)]
            if matching.size < remaining.size
            else remaining[:0]
        )


def _build_expression(parts: tuple[str, ...]) -> str:
    written = []
    for index, part in enumerate(parts):
        if part[0] != "%":
            pieces = re.split(r"(\s+)", part)
            written.append("".join(r"\s+" if piece.isspace() else re.escape(piece) for piece in pieces))
            continue
        letter = part[1]
        neighbours = (*parts[max(0, index - 1) : index], *parts[index + 1 : index + 2])
        is_unpadded = letter in _UNPADDED and not any(
            map(_is_number, parts[index + 1 : index + 2] if letter == "f" else neighbours)
        )
        choices = f"{_EXPRESSIONS[letter]}|{_UNPADDED[letter]}" if is_unpadded else _EXPRESSIONS[letter]
        written.append(f"(?P<{letter}>{choices})")
    return "".join(written)


def _is_number(part: str) -> bool:
    return part[1] in _NUMBERS if part[0] == "%" else part[0].isdigit() or part[-1].isdigit()


def _year(parts: dict[str, str]) -> int:
    if "Y" in parts:
        return int(parts["Y"])
    year = int(parts["y"])
    return year + (1900 if year >= _FIRST_YEAR_OF_1900S else 2000)


def _month(parts: dict[str, str]) -> int:
    if "m" in parts:
        return int(parts["m"])
    name = (parts.get("b") or parts["B"]).lower()
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(name[:3]))


def _hour(parts: dict[str, str]) -> int:
    if "I" in parts:
        return int(parts["I"]) % 12 + 12 * (parts["p"].lower() == "pm")
    return int(parts.get("H", 0))


def _offset(text: str) -> dt.timedelta:
    if text == "Z":
        return dt.timedelta()
    offset = dt.timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return -offset if text[0] == "-" else offset


class _TextBytes:
    """Bytes of texts in one buffer, from which texts of equal length are read as matrices."""

    def __init__(self, texts: pa.StringArray) -> None:
        _, offsets, data = texts.buffers()
        begin = texts.offset
        self._begins = np.frombuffer(offsets, np.int32)[begin : begin + len(texts) + 1].astype(np.int64)
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._lengths = np.diff(self._begins)

    def rows_of_length(self, length: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the rows whose texts have this length in bytes."""
        matching: npt.NDArray[np.int64] = rows[self._lengths[rows] == length]
        return matching

    def bytes_of(self, rows: npt.NDArray[np.int64], length: int) -> Bytes:
        """Returns the bytes of rows whose texts have this length, as a matrix with one row per text."""
        if rows.size == self._lengths.size:
            return self._data[self._begins[0] : self._begins[-1]].reshape(rows.size, length)
        matrix: Bytes = self._data[self._begins[rows][:, None] + np.arange(length)]
        return matrix


class _Layout:
    """Layout of texts of one length: the offset of each directive, taken from a matching text."""

    def __init__(self, match: re.Match[str], parts: tuple[str, ...]) -> None:
        self._spans = {part[1]: match.span(part[1]) for part in parts if part[0] == "%"}
        text = match.string
        directive_offsets = {offset for begin, end in self._spans.values() for offset in range(begin, end)}
        self._literal_characters = [
            (offset, ord(text[offset])) for offset in range(len(text)) if offset not in directive_offsets
        ]

    def read(self, texts: Bytes) -> tuple[Integers, RowMask]:
        """Returns the times of texts of this length, and a mask of the texts that have this layout."""
        digits = _DigitReader(texts)
        for offset, character in self._literal_characters:
            digits.require(texts[:, offset] == character)
        days = self._days(digits)
        seconds = self._seconds(digits) - self._offset_minutes(digits) * 60
        times = days * DAY_US + seconds * 1_000_000
        if "f" in self._spans:
            begin, end = self._spans["f"]
            times += digits.number(begin, end) * np.int64(10 ** (6 - (end - begin)))
        return times, digits.fits

    def _days(self, digits: _DigitReader) -> Integers:
        year, month, day = self._year(digits), self._month(digits), digits.number(*self._spans["d"])
        if "a" in self._spans:
            digits.name_ordinal(self._spans["a"][0], _WEEKDAYS)
        digits.require((year >= 1) & (month >= 1) & (month <= 12) & (day >= 1))
        month = np.where(digits.fits, month, 1)
        leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        digits.require(day <= _DAYS_OF_MONTH[month] + (leap & (month == 2)))
        # Counts years from March, so that the leap day is the last day of a year.
        year = year - (month <= 2)
        era = year // 400
        year_of_era = year - era * 400
        day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
        days: Integers = (
            era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
        )
        return days

    def _year(self, digits: _DigitReader) -> Integers:
        if "Y" in self._spans:
            return digits.number(*self._spans["Y"])
        year = digits.number(*self._spans["y"])
        return year + np.where(year >= _FIRST_YEAR_OF_1900S, 1900, 2000)

    def _month(self, digits: _DigitReader) -> Integers:
        return (
            digits.number(*self._spans["m"])
            if "m" in self._spans
            else digits.name_ordinal(self._spans["b"][0], _MONTHS)
        )

    def _seconds(self, digits: _DigitReader) -> Integers:
        seconds = digits.zeros()
        for letter, max_value, factor in (("H", 23, 3600), ("M", 59, 60), ("S", 59, 1)):
            if letter in self._spans:
                number = digits.number(*self._spans[letter])
                digits.require(number <= max_value)
                seconds += number * factor
        if "I" in self._spans:
            hour = digits.number(*self._spans["I"])
            digits.require((hour >= 1) & (hour <= 12))
            half = digits.name_ordinal(self._spans["p"][0], ("am", "pm"), letters=2) - 1
            seconds += (hour % 12 + 12 * half) * 3600
        return seconds

    def _offset_minutes(self, digits: _DigitReader) -> Integers:
        begin, end = self._spans.get("z", (0, 0))
        if end - begin <= 1:
            if end > begin:
                digits.require(digits.texts[:, begin] == ord("Z"))
            return digits.zeros()
        sign = digits.texts[:, begin]
        hours, minutes = digits.number(begin + 1, begin + 3), digits.number(end - 2, end)
        digits.require(((sign == ord("+")) | (sign == ord("-"))) & (hours <= 23) & (minutes <= 59))
        if end - begin == 6:
            digits.require(digits.texts[:, begin + 3] == ord(":"))
        offset: Integers = np.where(sign == ord("-"), -1, 1) * (hours * 60 + minutes)
        return offset


class _DigitReader:
    """Reads numbers and names at fixed offsets. `fits` masks the texts that match the layout so far."""

    def __init__(self, texts: Bytes) -> None:
        self.texts = texts
        self.fits: RowMask = np.ones(len(texts), np.bool_)

    def require(self, fits: RowMask) -> None:
        """Excludes texts for which the mask `fits` is false."""
        self.fits &= fits

    def zeros(self) -> Integers:
        """Returns zeros, one per row."""
        return np.zeros(len(self.texts), np.int64)

    def number(self, begin: int, end: int) -> Integers:
        """Returns, per text, the number in the digits from offset `begin` to `end`."""
        number = self.zeros()
        for offset in range(begin, end):
            digit = self.texts[:, offset] - np.uint8(48)
            self.require(digit <= 9)
            number = number * 10 + digit
        return number

    def name_ordinal(self, begin: int, names: tuple[str, ...], *, letters: int = 3) -> Integers:
        """Returns, per text, the ordinal (from 1) of the name whose first letters are at offset `begin`."""
        code = self.texts[:, begin].astype(np.int64) | 0x20
        for offset in range(begin + 1, begin + letters):
            code = code << 8 | self.texts[:, offset] | 0x20
        number = self.zeros()
        for ordinal, name in enumerate(names, 1):
            number[code == int.from_bytes(name[:letters].encode(), "big")] = ordinal
        self.require(number > 0)
        return number
