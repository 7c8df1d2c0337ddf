"""What fields were seen to hold: kinds of values as shapes have them, and what texts and numbers stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.inference.column_types import (
    ARRAY,
    FLOAT64,
    INT53,
    INT64,
    NULL,
    OBJECT,
    OPAQUE,
    TEXT,
    Shape,
    kind_of,
)
from deltaworks.events.inference.time_formats import fitting, still_fitting
from deltaworks.events.times import time_reader
from deltaworks.specs.times import ISO_8601

Path = tuple[str, ...]
#: What a text stands for: digits alone, digits with a fraction, any other number, and so on.
INSTANT, DATE, DIGITS, FRACTION, NUMBER, BOOLEAN_WORD = "instant", "date", "digits", "fraction", "number", "boolean"
NULL_WORD, PLAIN = "null word", "plain"
#: Texts that stand for nothing where all others of a column are numbers or times.
NULL_WORDS = frozenset({"NULL", "null", "NA", "N/A", "n/a", "na", "NaN", "nan", "None", "none", "\\N", "-", ""})
_DEEPEST = 8
#: An object of so many different fields has data for names, and is a map.
_MOST_FIELDS = 300
#: Values that are told apart one by one, and those that are looked at for whether all differ.
_MOST_COUNTED, _MOST_TOLD_APART = 1_000, 500_000
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_WITH_FRACTION = re.compile(r"-?(?:0|[1-9]\d*)\.(\d+)", re.ASCII)
_ANY_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATED = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?", re.ASCII)


@dataclass(slots=True)
class Profile:
    """The values of one field. `position` is the first place it was met at among its neighbours.

    `low` and `high` bound its numbers and the texts of digits; `scales` counts the digits behind the points, None where
    a number has no such; `whole_digits` are at most before it. `counts` has the values of a field with few of them, and
    `distinct` says how many different ones there were as long as nearly all differ. `formats` are the patterns of times
    that all its plain texts fit; None before there was one.
    """

    position: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    null_words: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Profile] = field(default_factory=dict)
    #: Elements of arrays, and values of an object that turned out to be a map.
    elements: Shape = field(default_factory=Shape)
    is_map: bool = False
    low: float = float("inf")
    high: float = float("-inf")
    scales: Counter[int | None] = field(default_factory=Counter)
    whole_digits: int = 0
    counts: Counter[Any] | None = field(default_factory=Counter)
    hashes: set[int] | None = None
    formats: tuple[str, ...] | None = None

    @property
    def values(self) -> int:
        """How many values there were, null being none."""
        return self.kinds.total() - self.kinds[NULL]

    @property
    def distinct(self) -> int | None:
        """How many different values there were; None where many are alike, or they were too many."""
        if self.counts is not None:
            return len(self.counts)
        return None if self.hashes is None else len(self.hashes)

    def note(self, value: Any, *, depth: int = 0) -> None:
        """Take in one value as JSON has it."""
        kind = kind_of(value)
        if depth >= _DEEPEST and kind in (OBJECT, ARRAY):
            kind = OPAQUE
        self.kinds[kind] += 1
        if kind == OBJECT:
            self._note_fields(value, depth)
        elif kind == ARRAY:
            for inner in value:
                self.elements.note(inner)
        elif kind == TEXT:
            self._note_text(value)
            self._count(value)
        elif kind in (INT53, INT64, FLOAT64):
            self._note_number(value)
            self._count(value)

    def _note_fields(self, value: Mapping[str, Any], depth: int) -> None:
        for position, (name, inner) in enumerate(value.items()):
            if self.is_map:
                self.elements.note(inner)
                continue
            below = self.fields.get(name)
            if below is None:
                below = self.fields[name] = Profile(position)
            below.note(inner, depth=depth + 1)
        if len(self.fields) > _MOST_FIELDS and depth:
            self.become_map()

    def become_map(self) -> None:
        """Take the fields together, as the values of a map."""
        for inner in self.fields.values():
            self.elements.merge(inner.as_shape())
        self.fields, self.is_map = {}, True

    def _note_number(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        if type(value) is float:
            match = _WITH_FRACTION.fullmatch(repr(value))
            self.scales[len(match[1]) if match else None] += 1

    def _note_text(self, text: str) -> None:
        form = _form_of(text)
        self.forms[form] += 1
        if form == NULL_WORD:
            self.null_words[text] += 1
        elif form == PLAIN:
            self.formats = fitting(text) if self.formats is None else still_fitting(self.formats, text)
        elif form == DIGITS:
            self.low, self.high = min(self.low, int(text)), max(self.high, int(text))
            self.whole_digits = max(self.whole_digits, len(text.lstrip("-")))
        elif form == FRACTION:
            whole, _, behind = text.lstrip("-").partition(".")
            self.scales[len(behind)] += 1
            self.whole_digits = max(self.whole_digits, len(whole))

    def _count(self, value: Any) -> None:
        if self.counts is not None:
            self.counts[value] += 1
            if len(self.counts) > _MOST_COUNTED:
                alike = self.counts.total() > 2 * len(self.counts)
                self.hashes = None if alike else {hash(counted) for counted in self.counts}
                self.counts = None
        elif self.hashes is not None:
            self.hashes.add(hash(value))
            if len(self.hashes) > _MOST_TOLD_APART or self.values > 2 * len(self.hashes):
                self.hashes = None

    def as_shape(self) -> Shape:
        """The same values as a shape, which merges with others."""
        shape = Shape(kinds=Counter(self.kinds), position=self.position)
        for name, inner in self.fields.items():
            shape.fields[name] = inner.as_shape()
        if self.elements.kinds:
            shape.elements().merge(self.elements)
        return shape

    def leaves(self, above: Path = ()) -> Iterator[tuple[Path, Profile]]:
        """Every field that has no fields of its own, with its path: below objects, never inside of arrays and maps."""
        in_order = sorted(self.fields.items(), key=lambda named: (named[1].position, named[0]))
        for name, inner in in_order:
            if inner.fields:
                yield from inner.leaves((*above, name))
            if not inner.fields or set(inner.kinds) - {OBJECT, NULL}:
                yield (*above, name), inner


def _form_of(text: str) -> str:
    if text in NULL_WORDS:
        return NULL_WORD
    if text[0].isalpha():
        return BOOLEAN_WORD if text.lower() in ("true", "false") else PLAIN
    if _WHOLE.fullmatch(text):
        return DIGITS
    if _WITH_FRACTION.fullmatch(text):
        return FRACTION
    if _DATED.fullmatch(text):
        return _form_of_time(text)
    # Digits that would be written otherwise, or that a number does not hold, are an identifier: 007, +49.
    return NUMBER if _ANY_NUMBER.fullmatch(text) and text[0] not in "+0" and not text.isdigit() else PLAIN


def _form_of_time(text: str) -> str:
    try:
        time_reader(ISO_8601).instant_us(text)
    except ConversionError:
        return PLAIN
    return DATE if len(text) == len("2026-01-31") else INSTANT
