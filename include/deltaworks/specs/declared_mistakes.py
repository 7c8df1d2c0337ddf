"""What pydantic refuses of a declaration, as mistakes with file, line, key and what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deltaworks.specs.base import Place
from deltaworks.specs.mistakes import Mistake, lines_of
from deltaworks.specs.overrides import Overrides
from deltaworks.specs.places import Location, keys_at, line_of, location_of, value_at
from deltaworks.specs.wording import one_of_several, plain_words, unknown_key
from deltaworks.specs.yaml_problems import UnreadableYaml

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

_BRACKETS = {"(": ")", "<": ">"}


@dataclass(frozen=True)
class Declared:
    """A declaration as it was read: the data that overrides were laid over, and what reads the file with its lines."""

    path: Path
    read: Callable[[], CommentedMap]
    data: dict[str, Any]
    overrides: Overrides = field(default_factory=Overrides)

    @cached_property
    def document(self) -> CommentedMap:
        """The file with its lines; read at the first mistake, of which most files have none."""
        return self.read()

    def mistake(self, place: Place, text: str) -> Mistake:
        """A mistake at a place; where an override put it there, at the place of that."""
        place = _of_chosen_source(place, self)
        line, shown = line_of(self.document, place)
        key = ".".join(str(part) for part in shown)
        if not self.overrides.holds(place, self.document):
            return Mistake(self.path, line, key, text)
        variable = self.overrides.variable(place)
        if variable is not None or self.overrides.file is None:
            return Mistake(self.path, line, f"{key} (set by {variable or 'an override'})", text)
        place = (*self.overrides.below, *place)
        line, shown = line_of(_document(self.overrides.file), place)
        return Mistake(self.overrides.file, line, ".".join(str(part) for part in shown), text)

    def line(self, place: Place) -> int:
        """The line of a place."""
        return line_of(self.document, place)[0]


@dataclass(frozen=True, slots=True)
class _Problem:
    error: ErrorDetails
    location: Location

    @property
    def place(self) -> Place:
        return self.location.place


def mistakes_of(error: ValidationError, declared: Declared, model: type[BaseModel]) -> list[tuple[Place, Mistake]]:
    """Every mistake with its place in the data, in the order of the file."""
    cut = list(_cut_types(declared.data, ()))
    problems = [
        _Problem(details, location_of(_of_chosen_source(details["loc"], declared), declared.data, missing=missing))
        for details in error.errors()
        for missing in [details["type"] == "missing"]
    ]
    problems = [problem for problem in problems if not _follows(problem, cut, declared)]
    alternatives = _alternatives(problems)
    listed = [
        (type_.place, declared.mistake(type_.place, f'quote it, because of its comma: type: "{type_.text}"'))
        for type_ in cut
    ]
    for problem in problems:
        value = next((place for place, _ in problem.location.branches if place in alternatives), None)
        if value is None:
            listed.append((problem.place, _described(problem, declared, model)))
            continue
        several = alternatives[value]
        within = [other for other in several if _is_within(other, value, declared)]
        if problem in within:
            listed.append((problem.place, _described(problem, declared, model)))
        elif not within and problem is several[0]:
            errors = [(other.error["type"], other.error.get("ctx", {})) for other in several]
            listed.append((value, declared.mistake(value, one_of_several(errors, value_at(value, declared.data)))))
    distinct = dict.fromkeys(listed)
    return sorted(distinct, key=lambda item: (str(item[1].file) != str(declared.path), item[1].line))


def _described(problem: _Problem, declared: Declared, model: type[BaseModel]) -> Mistake:
    error, place = problem.error, problem.place
    context: Mapping[str, Any] = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return declared.mistake(place, unknown_key(str(place[-1]), keys_at(error["loc"], model)))
    if error["type"].startswith("union_tag"):
        place = (*place, "kind")
    text = plain_words(error["type"], error["input"], context, message=error["msg"])
    others = context.get("others", ())
    if others:
        above = error["loc"][: len(error["loc"]) - context["depth"]]
        text += f"; also on {lines_of(declared.line((*above, *other)) for other in others)}"
    return declared.mistake(place, text)


def _alternatives(problems: list[_Problem]) -> dict[Place, list[_Problem]]:
    """The problems of values that are none of several alternatives, by the place of the value."""
    tried: dict[Place, set[str]] = {}
    for problem in problems:
        for place, label in problem.location.branches:
            tried.setdefault(place, set()).add(label)
    return {
        value: [problem for problem in problems if any(place == value for place, _ in problem.location.branches)]
        for value, labels in tried.items()
        if len(labels) > 1
    }


def _is_within(problem: _Problem, value: Place, declared: Declared) -> bool:
    """Whether a problem is of something within a value, which is then meant as that alternative."""
    return isinstance(value_at(value, declared.data), Mapping | list) and len(problem.place) > len(value)


@dataclass(frozen=True, slots=True)
class _CutType:
    """A type that YAML cut at its comma: `{type: decimal(12,2)}` has the keys `type` and `2)`."""

    place: Place
    pieces: frozenset[str]
    text: str


def _cut_types(node: Any, place: Place) -> Iterator[_CutType]:
    if isinstance(node, Mapping):
        kind = node.get("type")
        if isinstance(kind, str) and not _is_whole(kind):
            yield from _put_together(node, kind, place)
        for key, value in node.items():
            yield from _cut_types(value, (*place, str(key)))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _cut_types(value, (*place, index))


def _put_together(node: Mapping[Any, Any], kind: str, place: Place) -> Iterator[_CutType]:
    keys = [str(key) for key in node]
    pieces: list[str] = []
    for key in keys[keys.index("type") + 1 :]:
        if node.get(key, "") is not None and key in node:
            return
        pieces.append(key)
        text = ",".join([kind, *pieces])
        if _is_whole(text):
            yield _CutType((*place, "type"), frozenset(pieces), text)
            return


def _is_whole(text: str) -> bool:
    return all(text.count(opening) <= text.count(closing) for opening, closing in _BRACKETS.items())


def _follows(problem: _Problem, cut: list[_CutType], declared: Declared) -> bool:
    """Whether a problem only follows from another: a piece of a cut type, or too few items where some are wrong."""
    place, kind = problem.place, problem.error["type"]
    for type_ in cut:
        if place[:-1] == type_.place[:-1] and (place == type_.place or str(place[-1]) in type_.pieces):
            return True
    declared_items = value_at(place, declared.data)
    context = problem.error.get("ctx", {})
    return kind == "too_short" and isinstance(declared_items, list) and len(declared_items) >= context["min_length"]


def _of_chosen_source(loc: Place, declared: Declared) -> Place:
    """A location in the source, where it is one of several by name."""
    sources, name = declared.data.get("sources"), declared.data.get("source")
    if loc[:1] == ("source",) and isinstance(sources, Mapping) and isinstance(name, str) and name in sources:
        return ("sources", name, *loc[1:])
    return loc


def _document(path: Path) -> Any:
    from deltaworks.specs.bounded_yaml import load_yaml

    try:
        return load_yaml(path.read_bytes(), kind="rt")
    except (OSError, UnreadableYaml):
        return cast("Any", None)
