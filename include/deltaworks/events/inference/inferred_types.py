"""Infers the column type that holds all sampled values of a field, if there is one.

If values are ambiguous, the field's name decides: an integer is a time only if the name suggests a time, and an amount
of money is a decimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from deltaworks.events.inference.field_profiles import (
    ARRAY,
    BOOLEAN,
    BOOLEAN_WORD,
    DATE,
    DIGITS,
    FLOAT64,
    FRACTION,
    INSTANT,
    INT53,
    INT64,
    LARGE,
    NULL,
    NULL_WORD,
    NUMBER,
    OBJECT,
    OPAQUE,
    PLAIN,
    TEXT,
    FieldProfile,
    Shape,
    is_date_only,
)
from deltaworks.specs.times import ISO_8601, TimeFormat, TimeUnit
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct


def split_words(text: str) -> tuple[str, ...]:
    """Splits a text at white space."""
    return tuple(re.findall(r"\S+", text))


#: SQL keywords. As column names they would have to be quoted in every query.
SQL_KEYWORDS = frozenset(
    split_words(
        "all and any as asc both by case cast check column constraint create cross current_date default desc distinct "
        "do else end except false fetch for foreign from full grant group having in inner intersect into is join "
        "lateral leading left like limit natural not null offset on only or order outer primary references returning "
        "right select some table then to trailing true union unique user using values when where window with"
    )
)
STRING, LONG, DOUBLE, TIMESTAMP = Primitive("string"), Primitive("long"), Primitive("double"), Primitive("timestamp")
_NESTED_KINDS = frozenset({OBJECT, ARRAY, OPAQUE})
#: Names that column types allow for struct fields.
_STRUCT_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_TIME_WORDS = frozenset(
    split_words(
        "time timestamp tstamp ts date datetime at on when created updated modified expires expiry start end since "
        "until begin finished started"
    )
)
#: Words for units at the end of a time's name, as in `created_ms`.
_UNIT_WORDS = frozenset(split_words("ms msec millis millisecond milliseconds s sec secs second seconds utc gmt"))
_EPOCH_WORDS = frozenset({"epoch", "unix", "unixtime"})
_MONEY_WORDS = frozenset(
    split_words(
        "price amount total subtotal cost revenue fee fees tax balance paid refund refunded discount gross net "
        "bookings payment salary"
    )
)
#: Range of plausible times: the years 1990 to 2100, in seconds.
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 4_102_444_800
_MAX_SCALE, _DECIMAL_DIGITS, _MAX_DOUBLE_DIGITS = 6, 18, 15
#: Longer types are not proposed.
_MAX_TYPE_LENGTH = 160


@dataclass(frozen=True, slots=True)
class InferredType:
    """An inferred column type, and the format of its times.

    Attributes:
        null_words: texts that must be read as null.
        formats: all time patterns that the texts match, if there are several; the column is then a string.
    """

    kind: ColumnType
    form: TimeFormat = ISO_8601
    null_words: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


def name_words(name: str) -> list[str]:
    """Returns the words of a field's name in lower case."""
    return [word.lower() for word in _WORD.split(name) if word]


def is_time_name(name: str) -> bool:
    """Returns whether the field's name suggests a time."""
    words = time_name_words(name)
    if _EPOCH_WORDS & {*name_words(name)}:
        return True
    return bool(words) and (words[-1] in _TIME_WORDS or bool({"time", "timestamp", "tstamp"} & {*words}))


def time_name_words(name: str) -> list[str]:
    """Returns the words of a time field's name, without the unit: `created` and `at` of `createdAtMillis`."""
    words = [word for word in name_words(name) if word not in _EPOCH_WORDS]
    while len(words) > 1 and words[-1] in _UNIT_WORDS:
        words.pop()
    return words


def epoch_unit(profile: FieldProfile) -> TimeUnit | None:
    """Returns the epoch unit in which all numbers are plausible times; None if there is none, or no number."""
    if profile.min_value > profile.max_value:
        return None
    if profile.min_value >= _FIRST_SECOND and profile.max_value < _LAST_SECOND:
        return "epoch_seconds"
    if profile.min_value >= _FIRST_SECOND * 1_000 and profile.max_value < _LAST_SECOND * 1_000:
        return "epoch_millis"
    return None


def infer_field_type(name: str, profile: FieldProfile, *, values_are_text: bool) -> InferredType | str:
    """Infers the type of the field `name`; returns a reason instead if it has none.

    Args:
        values_are_text: the format has only texts, which columns parse.
    """
    kinds = set(profile.kinds) - {NULL}
    if not kinds or OPAQUE in kinds:
        return "nested too deeply" if kinds else "never has a value"
    if kinds in ({OBJECT}, {ARRAY}):
        return _nested_type(profile, is_map=kinds == {OBJECT})
    if kinds == {TEXT}:
        return _text_type(name, profile, values_are_text=values_are_text)
    if kinds == {BOOLEAN}:
        return InferredType(Primitive("boolean"))
    if kinds <= {INT53, INT64} or kinds <= {INT53, FLOAT64}:
        return _epoch_time_or(name, profile, _fraction_type(name, profile) if FLOAT64 in kinds else LONG)
    return f"values are {' and '.join(sorted(kinds))}"


def _nested_type(profile: FieldProfile, *, is_map: bool) -> InferredType | str:
    conflicts: list[Conflict] = []
    inner = infer_type(profile.elements, conflicts=conflicts) if profile.elements.kinds else None
    if conflicts:
        return f"nested values have several types: {conflicts[0].path.lstrip('.') or 'values'}"
    if inner is None:
        return "always empty"
    kind = Map(inner) if is_map else Array(inner)
    return InferredType(kind) if len(str(kind)) <= _MAX_TYPE_LENGTH else "an object of many fields in a list"


def _epoch_time_or(name: str, profile: FieldProfile, kind: ColumnType) -> InferredType:
    unit = epoch_unit(profile) if is_time_name(name) else None
    return InferredType(kind) if unit is None else InferredType(TIMESTAMP, TimeFormat(unit))


def _fraction_type(name: str, profile: FieldProfile) -> ColumnType:
    scale = _max_scale(profile)
    largest = max(abs(profile.min_value), abs(profile.max_value))
    # A double holds 15 digits exactly, and larger values would go to quarantine. Three digits are reserved for growth.
    if _is_money(name) and scale is not None and largest < 10.0 ** (_MAX_DOUBLE_DIGITS - 3 - max(2, scale)):
        return Decimal(_DECIMAL_DIGITS, max(2, scale))
    return DOUBLE


def _text_type(name: str, profile: FieldProfile, *, values_are_text: bool) -> InferredType:
    forms = set(profile.text_forms) - {NULL_WORD}
    leaf = _type_by_forms(name, profile, forms, values_are_text=values_are_text) if forms else InferredType(STRING)
    if leaf.kind == STRING or not profile.null_words:
        return leaf
    return replace(leaf, null_words=tuple(sorted(profile.null_words))) if values_are_text else InferredType(STRING)


def _type_by_forms(name: str, profile: FieldProfile, forms: set[str], *, values_are_text: bool) -> InferredType:
    if forms <= {DATE, INSTANT}:
        return InferredType(Primitive("date") if forms == {DATE} else TIMESTAMP)
    if forms == {PLAIN}:
        return _type_by_time_formats(matching_time_formats(name, profile))
    if forms == {DIGITS}:
        return _epoch_time_or(name, profile, LONG if values_are_text else STRING)
    if forms <= {DIGITS, FRACTION}:
        return InferredType(_fraction_text_type(name, profile, forms, values_are_text=values_are_text))
    return InferredType(_number_or_boolean_type(forms) if values_are_text else STRING)


def _number_or_boolean_type(forms: set[str]) -> ColumnType:
    if forms <= {DIGITS, FRACTION, NUMBER}:
        return DOUBLE
    return Primitive("boolean") if forms == {BOOLEAN_WORD} else STRING


def matching_time_formats(name: str, profile: FieldProfile) -> tuple[str, ...]:
    """Returns the time patterns that all texts of the field match.

    Version numbers look like dates, so a pattern without time of day counts only if the field's name suggests a time.
    """
    formats = profile.time_formats or ()
    return formats if is_time_name(name) else tuple(item for item in formats if not is_date_only(item))


def _type_by_time_formats(formats: tuple[str, ...]) -> InferredType:
    if len(formats) != 1:
        return InferredType(STRING, formats=formats)
    kind = Primitive("date") if is_date_only(formats[0]) else TIMESTAMP
    return InferredType(kind, TimeFormat(format=formats[0]))


def _fraction_text_type(name: str, profile: FieldProfile, forms: set[str], *, values_are_text: bool) -> ColumnType:
    scale = _max_scale(profile)
    has_fixed_scale = len(profile.scales) == 1 and forms == {FRACTION} and scale is not None and scale >= 2
    exact = _is_money(name) or (has_fixed_scale and "version" not in name_words(name))
    if exact and scale is not None and profile.integer_digits + scale <= _DECIMAL_DIGITS - 3:
        return Decimal(_DECIMAL_DIGITS, max(2, scale))
    return DOUBLE if values_are_text else STRING


def _max_scale(profile: FieldProfile) -> int | None:
    """Returns the maximum number of decimal places; None if there are too many, or numbers are in another notation."""
    if None in profile.scales:
        return None
    largest = max((scale for scale in profile.scales if scale is not None), default=0)
    return largest if largest <= _MAX_SCALE else None


def _is_money(name: str) -> bool:
    return not _MONEY_WORDS.isdisjoint(name_words(name))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Number of sampled values of a field that do not fit its column."""

    path: str
    kind: str
    values: int


def infer_type(shape: Shape, *, path: str = "", conflicts: list[Conflict] | None = None) -> ColumnType | None:
    """Infers the type of a field from its shape; None if there are no usable values.

    Args:
        conflicts: receives values that do not fit the type.
    """
    chosen: ColumnType | None = None
    plain: list[str] = []
    for kind, count in sorted(shape.kinds.items(), key=lambda item: (-item[1], item[0])):
        if kind == NULL:
            continue
        fits = None
        if kind in _NESTED_KINDS and chosen is None:
            fits = _infer_nested_type(shape, kind, path, conflicts)
        elif kind not in _NESTED_KINDS and (chosen is None or plain):
            fits = _narrowest_type(frozenset((*plain, kind)))
            plain += [kind] if fits is not None else []
        if fits is not None:
            chosen = fits
        elif conflicts is not None:
            conflicts.append(Conflict(path, kind, count))
    return chosen


def _infer_nested_type(shape: Shape, kind: str, path: str, conflicts: list[Conflict] | None) -> ColumnType | None:
    if kind == OPAQUE:
        return None
    if kind == OBJECT:
        fields = tuple(_infer_fields(shape, f"{path}.", conflicts))
        return Struct(fields) if fields else None
    element = infer_type(shape.element, path=f"{path}[]", conflicts=conflicts) if shape.element is not None else None
    return None if element is None else Array(element)


def _infer_fields(shape: Shape, path: str, conflicts: list[Conflict] | None) -> Iterator[tuple[str, ColumnType]]:
    """Yields the fields that can become columns, in order. If names differ only in case, the most frequent one wins."""
    by_lower: dict[str, tuple[str, ColumnType]] = {}
    for name in _names_by_count(shape):
        if name.lower() in by_lower:
            continue
        kind = infer_type(shape.fields[name], path=path + name, conflicts=conflicts)
        if kind is not None:
            by_lower[name.lower()] = name, kind
    yield from sorted(by_lower.values(), key=lambda named: (shape.fields[named[0]].position, named[0]))


def _names_by_count(shape: Shape) -> list[str]:
    fitting = [name for name, inner in shape.fields.items() if inner.values and _STRUCT_FIELD_NAME.fullmatch(name)]
    return sorted(fitting, key=lambda name: (-shape.fields[name].values, name))


def _narrowest_type(kinds: frozenset[str]) -> ColumnType | None:
    """Returns the narrowest type that holds all values of these kinds exactly; None if there is none."""
    if kinds in ({BOOLEAN}, {TEXT}):
        return STRING if kinds == {TEXT} else Primitive("boolean")
    if FLOAT64 in kinds:
        return DOUBLE if kinds <= {FLOAT64, INT53} else None
    if kinds <= {INT53, INT64}:
        return LONG
    return Decimal(20, 0) if kinds <= {INT53, INT64, LARGE} else None
