"""The type of a column that takes every value its field was seen to have; none where no type does.

What a field is called counts where its values leave it open: a whole number is a time only in a field that is called
like one, and a number of money is a decimal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from deltaworks.events.inference.column_types import (
    ARRAY,
    BOOLEAN,
    FLOAT64,
    INT53,
    INT64,
    NULL,
    OBJECT,
    OPAQUE,
    STRING,
    TEXT,
    Conflict,
    type_of,
)
from deltaworks.events.inference.field_profiles import (
    BOOLEAN_WORD,
    DATE,
    DIGITS,
    FRACTION,
    INSTANT,
    NULL_WORD,
    NUMBER,
    PLAIN,
    Profile,
)
from deltaworks.events.inference.time_formats import is_of_date_alone
from deltaworks.specs.times import ISO_8601, TimeFormat, TimeUnit
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive


def words_in(text: str) -> tuple[str, ...]:
    """The words of a text, with spaces between."""
    return tuple(re.findall(r"\S+", text))


#: Names that SQL reads as something else, unless they are quoted wherever they stand.
KEYWORDS = frozenset(
    words_in(
        "all and any as asc both by case cast check column constraint create cross current_date default desc distinct "
        "do else end except false fetch for foreign from full grant group having in inner intersect into is join "
        "lateral leading left like limit natural not null offset on only or order outer primary references returning "
        "right select some table then to trailing true union unique user using values when where window with"
    )
)
LONG, DOUBLE, TIMESTAMP = Primitive("long"), Primitive("double"), Primitive("timestamp")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_TIME_WORDS = frozenset(
    words_in(
        "time timestamp tstamp ts date datetime at on when created updated modified expires expiry start end since "
        "until begin finished started"
    )
)
_MONEY_WORDS = frozenset(
    words_in(
        "price amount total subtotal cost revenue fee fees tax balance paid refund refunded discount gross net "
        "bookings payment salary"
    )
)
#: The years 1990 to 2100, in seconds.
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 4_102_444_800
_MOST_SCALE, _DECIMAL_DIGITS, _DIGITS_OF_A_DOUBLE = 6, 18, 15
#: A type that is longer to write is no column to start with.
_LONGEST_TYPE = 160


@dataclass(frozen=True, slots=True)
class Leaf:
    """The type of a column, and how its times are written. `null_words` are texts that have to stand for nothing;
    `formats` several patterns that all its texts fit: a text, since they do not tell which is meant."""

    kind: ColumnType
    form: TimeFormat = ISO_8601
    null_words: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


def words_of(name: str) -> list[str]:
    """The words of a field's name, in lower case."""
    return [word.lower() for word in _WORD.split(name) if word]


def is_time_name(name: str) -> bool:
    """Whether a field that is called so is expected to hold a time."""
    words = words_of(name)
    return bool(words) and (words[-1] in _TIME_WORDS or bool({"time", "timestamp", "tstamp"} & {*words}))


def epoch_unit(profile: Profile) -> TimeUnit | None:
    """The unit in which all its numbers are times of our days; None where there is none."""
    if profile.low >= _FIRST_SECOND and profile.high < _LAST_SECOND:
        return "epoch_seconds"
    if profile.low >= _FIRST_SECOND * 1_000 and profile.high < _LAST_SECOND * 1_000:
        return "epoch_millis"
    return None


def leaf_of(name: str, profile: Profile, *, of_text: bool) -> Leaf | str:
    """The type for the field called `name`, or why it has none.

    Args:
        of_text: all values of the format are texts, and columns read what they stand for.
    """
    kinds = set(profile.kinds) - {NULL}
    if not kinds or OPAQUE in kinds:
        return "nested too deeply" if kinds else "never has a value"
    if kinds in ({OBJECT}, {ARRAY}):
        return _of_many(profile, is_map=kinds == {OBJECT})
    if kinds == {TEXT}:
        return _of_texts(name, profile, of_text=of_text)
    if kinds == {BOOLEAN}:
        return Leaf(Primitive("boolean"))
    if kinds <= {INT53, INT64} or kinds <= {INT53, FLOAT64}:
        return _time_or(name, profile, _of_fractions(name, profile) if FLOAT64 in kinds else LONG)
    return f"values are {' and '.join(sorted(kinds))}"


def _of_many(profile: Profile, *, is_map: bool) -> Leaf | str:
    conflicts: list[Conflict] = []
    inner = type_of(profile.elements, conflicts=conflicts) if profile.elements.kinds else None
    if conflicts:
        return f"values inside are of several types: {conflicts[0].path.lstrip('.') or 'values'}"
    if inner is None:
        return "always empty"
    kind = Map(inner) if is_map else Array(inner)
    return Leaf(kind) if len(str(kind)) <= _LONGEST_TYPE else "an object of many fields in a list"


def _time_or(name: str, profile: Profile, kind: ColumnType) -> Leaf:
    unit = epoch_unit(profile) if is_time_name(name) else None
    return Leaf(kind) if unit is None else Leaf(TIMESTAMP, TimeFormat(unit))


def _of_fractions(name: str, profile: Profile) -> ColumnType:
    scale = _scale(profile)
    largest = max(abs(profile.low), abs(profile.high))
    # A double tells fifteen digits; one that may have lost some would go to quarantine. Three are left for growth.
    if _is_money(name) and scale is not None and largest < 10.0 ** (_DIGITS_OF_A_DOUBLE - 3 - max(2, scale)):
        return Decimal(_DECIMAL_DIGITS, max(2, scale))
    return DOUBLE


def _of_texts(name: str, profile: Profile, *, of_text: bool) -> Leaf:
    forms = set(profile.forms) - {NULL_WORD}
    leaf = _of_forms(name, profile, forms, of_text=of_text) if forms else Leaf(STRING)
    if leaf.kind == STRING or not profile.null_words:
        return leaf
    return replace(leaf, null_words=tuple(sorted(profile.null_words))) if of_text else Leaf(STRING)


def _of_forms(name: str, profile: Profile, forms: set[str], *, of_text: bool) -> Leaf:
    if forms <= {DATE, INSTANT}:
        return Leaf(Primitive("date") if forms == {DATE} else TIMESTAMP)
    if forms == {PLAIN}:
        return _of_formats(time_formats(name, profile))
    if forms == {DIGITS}:
        return _time_or(name, profile, LONG if of_text else STRING)
    if forms <= {DIGITS, FRACTION}:
        return Leaf(_of_written_fractions(name, profile, forms, of_text=of_text))
    return Leaf(_of_words(forms) if of_text else STRING)


def _of_words(forms: set[str]) -> ColumnType:
    if forms <= {DIGITS, FRACTION, NUMBER}:
        return DOUBLE
    return Primitive("boolean") if forms == {BOOLEAN_WORD} else STRING


def time_formats(name: str, profile: Profile) -> tuple[str, ...]:
    """The patterns of times that all texts of the field called `name` fit. Versions look like dates: a date alone is
    one only in a field that is called like one."""
    formats = profile.formats or ()
    return formats if is_time_name(name) else tuple(item for item in formats if not is_of_date_alone(item))


def _of_formats(formats: tuple[str, ...]) -> Leaf:
    if len(formats) != 1:
        return Leaf(STRING, formats=formats)
    kind = Primitive("date") if is_of_date_alone(formats[0]) else TIMESTAMP
    return Leaf(kind, TimeFormat(format=formats[0]))


def _of_written_fractions(name: str, profile: Profile, forms: set[str], *, of_text: bool) -> ColumnType:
    scale = _scale(profile)
    always_alike = len(profile.scales) == 1 and forms == {FRACTION} and scale is not None and scale >= 2
    exact = _is_money(name) or (always_alike and "version" not in words_of(name))
    if exact and scale is not None and profile.whole_digits + scale <= _DECIMAL_DIGITS - 3:
        return Decimal(_DECIMAL_DIGITS, max(2, scale))
    return DOUBLE if of_text else STRING


def _scale(profile: Profile) -> int | None:
    """The digits behind the point at most; None where they are many, or a number is written otherwise."""
    if None in profile.scales:
        return None
    largest = max((scale for scale in profile.scales if scale is not None), default=0)
    return largest if largest <= _MOST_SCALE else None


def _is_money(name: str) -> bool:
    return not _MONEY_WORDS.isdisjoint(words_of(name))
