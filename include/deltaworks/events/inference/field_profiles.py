"""Profiles of sampled fields: counts of value kinds, the forms of texts and numbers, and matching time patterns.

Inside arrays and maps, only the kinds are counted, as shapes. An ambiguous date matches several time patterns; only the
order of day, month and year can be ambiguous. No result depends on the order of values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from deltaworks.events.lossless_numbers import NUMBER as NUMBER_PATTERN
from deltaworks.events.reasons import ConversionError
from deltaworks.events.time_patterns import NoMatch, pattern_reader
from deltaworks.events.times import time_reader
from deltaworks.specs.times import ISO_8601, parse_pattern

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


Path = tuple[str, ...]
#: Kinds of JSON values. Integers: exact as a double, 64 bits, and larger.
NULL, BOOLEAN, TEXT, INT53, INT64, LARGE, FLOAT64 = "null", "boolean", "text", "int53", "int64", "large", "float64"
OBJECT, ARRAY = "object", "array"
#: Kind of values without a column type: nested too deeply, or of an unknown type.
OPAQUE = "opaque"
#: Forms of texts: digits only, digits with a fraction, other numbers, dates.
INSTANT, DATE, DIGITS, FRACTION, NUMBER, BOOLEAN_WORD = "instant", "date", "digits", "fraction", "number", "boolean"
NULL_WORD, PLAIN = "null word", "plain"
#: Texts that mean null if all other texts of a column are numbers or times.
NULL_WORDS = frozenset({"NULL", "null", "NA", "N/A", "n/a", "na", "NaN", "nan", "None", "none", "\\N", "-", ""})
_MAX_DEPTH, _MAX_SHAPE_DEPTH = 8, 20
_MAX_EXACT_DOUBLE = 1 << 53
#: An object with this many distinct fields is a map whose keys are data.
_MAX_FIELDS = 300
#: Maximum number of values that are counted individually, and of values that are hashed to check whether all are
#: distinct.
_MAX_COUNTED_VALUES, _MAX_HASHED_VALUES = 1_000, 500_000
_INTEGER_TEXT = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_FRACTION_TEXT = re.compile(r"-?(?:0|[1-9]\d*)\.(\d+)", re.ASCII)
_DATE_TEXT = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?", re.ASCII)
_MIDNIGHT_TEXT = re.compile(r"(?<![\d:])(00:00(:00([.,]0+)?)?(?![\d:.,]| ?[PpAa][Mm])|12:00(:00)? ?[Aa][Mm])")
_DAY_SECONDS = 86_400
_KIND_OF_TYPE = {bool: BOOLEAN, str: TEXT, float: FLOAT64, dict: OBJECT, list: ARRAY, type(None): NULL}


@dataclass(slots=True)
class Shape:
    """Counts values by kind, with the shapes of object fields and of array or map elements.

    The smallest index at which a field occurred in its object is its `position`.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Shape] = field(default_factory=dict)
    element: Shape | None = None
    position: int = 0

    @property
    def values(self) -> int:
        """Number of values other than null."""
        return self.kinds.total() - self.kinds[NULL]

    def add_value(self, value: Any, *, depth: int = 0) -> None:
        """Adds one JSON value."""
        kind = json_kind(value)
        if depth >= _MAX_SHAPE_DEPTH and kind in (OBJECT, ARRAY):
            kind = OPAQUE
        self.kinds[kind] += 1
        if kind == OBJECT:
            for position, (name, inner) in enumerate(value.items()):
                self.field_shape(name, position).add_value(inner, depth=depth + 1)
        elif kind == ARRAY and value:
            element = self.element_shape()
            for inner in value:
                element.add_value(inner, depth=depth + 1)

    def field_shape(self, name: str, position: int) -> Shape:
        """Returns the shape of a field; creates it on first use."""
        shape = self.fields.get(name)
        if shape is None:
            shape = self.fields[name] = Shape(position=position)
        elif position < shape.position:
            shape.position = position
        return shape

    def element_shape(self) -> Shape:
        """Returns the shape of array or map elements; creates it on first use."""
        if self.element is None:
            self.element = Shape()
        return self.element

    def merge(self, other: Self) -> None:
        """Adds all counts of another shape, which stays unchanged."""
        self.kinds.update(other.kinds)
        for name, inner in other.fields.items():
            self.field_shape(name, inner.position).merge(inner)
        if other.element is not None:
            self.element_shape().merge(other.element)


def json_kind(value: Any) -> str:
    """Returns the kind of one JSON value."""
    if type(value) is int:
        if -_MAX_EXACT_DOUBLE <= value <= _MAX_EXACT_DOUBLE:
            return INT53
        return INT64 if -(1 << 63) <= value < 1 << 63 else LARGE
    return _KIND_OF_TYPE.get(type(value), OPAQUE)


@dataclass(slots=True)
class FieldProfile:
    """Statistics of the sampled values of one field.

    Attributes:
        position: smallest index at which the field occurred in its object.
        min_value, max_value: range of numbers and digit texts.
        scales: counts of numbers by decimal places; None for another notation, such as exponents.
        midnights: number of values that are a midnight, if they are times.
        integer_digits: maximum number of digits before the decimal point.
        value_counts: counts by value, if there are few distinct values.
        value_hashes: hashes of values, as long as nearly all are distinct.
        time_formats: time patterns that all plain texts match; None before the first text.
    """

    position: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    text_forms: Counter[str] = field(default_factory=Counter)
    null_words: Counter[str] = field(default_factory=Counter)
    fields: dict[str, FieldProfile] = field(default_factory=dict)
    #: Profile of array elements, or of map values.
    elements: Shape = field(default_factory=Shape)
    is_map: bool = False
    min_value: float = float("inf")
    max_value: float = float("-inf")
    scales: Counter[int | None] = field(default_factory=Counter)
    midnights: int = 0
    integer_digits: int = 0
    value_counts: Counter[Any] | None = field(default_factory=Counter)
    value_hashes: set[int] | None = None
    time_formats: tuple[str, ...] | None = None

    @property
    def values(self) -> int:
        """Number of values other than null."""
        return self.kinds.total() - self.kinds[NULL]

    @property
    def distinct_count(self) -> int | None:
        """Number of distinct values; None if many values are equal, or there are too many to count."""
        if self.value_counts is not None:
            return len(self.value_counts)
        return None if self.value_hashes is None else len(self.value_hashes)

    def add_value(self, value: Any, *, depth: int = 0) -> None:
        """Adds one JSON value."""
        kind = json_kind(value)
        if depth >= _MAX_DEPTH and kind in (OBJECT, ARRAY):
            kind = OPAQUE
        self.kinds[kind] += 1
        if kind == OBJECT:
            self._add_fields(value, depth)
        elif kind == ARRAY:
            for inner in value:
                self.elements.add_value(inner)
        elif kind == TEXT:
            self._add_text(value)
            self._count_distinct(value)
        elif kind in (INT53, INT64, FLOAT64):
            self._add_number(value)
            self._count_distinct(value)

    def _add_fields(self, value: Mapping[str, Any], depth: int) -> None:
        for position, (name, inner) in enumerate(value.items()):
            if self.is_map:
                self.elements.add_value(inner)
                continue
            profile = self.fields.get(name)
            if profile is None:
                profile = self.fields[name] = FieldProfile(position)
            profile.add_value(inner, depth=depth + 1)
        if len(self.fields) > _MAX_FIELDS and depth:
            self.convert_to_map()

    @property
    def is_always_midnight(self) -> bool:
        """Returns whether no value has a time of day, if the values are times."""
        return self.midnights == self.values - self.null_words.total()

    def convert_to_map(self) -> None:
        """Turns an object into a map: merges the profiles of its fields into one profile of map values."""
        for inner in self.fields.values():
            self.elements.merge(inner.to_shape())
        self.fields, self.is_map = {}, True

    def _add_number(self, value: float) -> None:
        self.midnights += value % _DAY_SECONDS == 0
        self.min_value, self.max_value = min(self.min_value, value), max(self.max_value, value)
        if type(value) is float:
            match = _FRACTION_TEXT.fullmatch(repr(value))
            self.scales[len(match[1]) if match else None] += 1

    def _add_text(self, text: str) -> None:
        form = _text_form(text)
        self.text_forms[form] += 1
        self.midnights += int(text) % _DAY_SECONDS == 0 if form == DIGITS else bool(_MIDNIGHT_TEXT.search(text))
        if form == NULL_WORD:
            self.null_words[text] += 1
        elif form == PLAIN:
            self.time_formats = (
                matching_patterns(text) if self.time_formats is None else narrow_patterns(self.time_formats, text)
            )
        elif form == DIGITS:
            self.min_value, self.max_value = min(self.min_value, int(text)), max(self.max_value, int(text))
            self.integer_digits = max(self.integer_digits, len(text.lstrip("-")))
        elif form == FRACTION:
            integer, _, fraction = text.lstrip("-").partition(".")
            self.scales[len(fraction)] += 1
            self.integer_digits = max(self.integer_digits, len(integer))

    def _count_distinct(self, value: Any) -> None:
        if self.value_counts is not None:
            self.value_counts[value] += 1
            if len(self.value_counts) > _MAX_COUNTED_VALUES:
                has_repeated_values = self.value_counts.total() > 2 * len(self.value_counts)
                self.value_hashes = None if has_repeated_values else {hash(counted) for counted in self.value_counts}
                self.value_counts = None
        elif self.value_hashes is not None:
            self.value_hashes.add(hash(value))
            if len(self.value_hashes) > _MAX_HASHED_VALUES or self.values > 2 * len(self.value_hashes):
                self.value_hashes = None

    def to_shape(self) -> Shape:
        """Converts the profile to a shape, which can be merged with others."""
        shape = Shape(kinds=Counter(self.kinds), position=self.position)
        for name, inner in self.fields.items():
            shape.fields[name] = inner.to_shape()
        if self.elements.kinds:
            shape.element_shape().merge(self.elements)
        return shape

    def leaves(self, prefix: Path = ()) -> Iterator[tuple[Path, FieldProfile]]:
        """Yields each field that has no nested fields, with its path. Arrays and maps count as leaves."""
        in_order = sorted(self.fields.items(), key=lambda named: (named[1].position, named[0]))
        for name, inner in in_order:
            if inner.fields:
                yield from inner.leaves((*prefix, name))
            if not inner.fields or set(inner.kinds) - {OBJECT, NULL}:
                yield (*prefix, name), inner


def _text_form(text: str) -> str:
    if text in NULL_WORDS:
        return NULL_WORD
    if text[0].isalpha():
        return BOOLEAN_WORD if text.lower() in ("true", "false") else PLAIN
    if _INTEGER_TEXT.fullmatch(text):
        return DIGITS
    if _FRACTION_TEXT.fullmatch(text):
        return FRACTION
    if _DATE_TEXT.fullmatch(text):
        return _time_text_form(text)
    # Digits in an unusual notation (007, +49) or beyond a number's range are identifiers, not numbers.
    return NUMBER if NUMBER_PATTERN.fullmatch(text) and text[0] not in "+0" and not text.isdigit() else PLAIN


def _time_text_form(text: str) -> str:
    try:
        time_reader(ISO_8601).instant_us(text)
    except ConversionError:
        return PLAIN
    return DATE if len(text) == len("2026-01-31") else INSTANT
