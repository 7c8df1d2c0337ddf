"""Converts pydantic's validation errors to spec errors with file, line, key and advice.

In the locations of unions pydantic inserts labels between the keys: the kind of a source, or the name of a class.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deltaworks.specs.base import KeyPath
from deltaworks.specs.overrides import Overrides
from deltaworks.specs.spec_errors import (
    SpecError,
    error_message,
    format_lines,
    union_error_message,
    unknown_key_message,
)
from deltaworks.specs.yaml_reader import InvalidYamlError, YamlDocument, load_yaml

_BRACKETS = {"(": ")", "<": ">"}


@dataclass(frozen=True, slots=True)
class Declaration:
    """A spec file as it was read, and its data with overrides merged."""

    path: Path
    document: YamlDocument
    data: dict[str, Any]
    overrides: Overrides = field(default_factory=Overrides)

    def error_at(self, key_path: KeyPath, text: str) -> SpecError:
        """Returns an error at a key path. If an override sets the value, the error names the override's location."""
        key_path = _selected_source_path(key_path, self)
        line, shown_path = self.document.line_of(key_path)
        key = ".".join(str(part) for part in shown_path)
        if not self.overrides.is_overridden(key_path, self.document.values):
            return SpecError(self.path, line, key, text)
        variable = self.overrides.variable(key_path)
        if variable is not None or self.overrides.file is None:
            return SpecError(self.path, line, f"{key} (set by {variable or 'an override'})", text)
        key_path = (*self.overrides.key_prefix, *key_path)
        line, shown_path = _read_document(self.overrides.file).line_of(key_path)
        return SpecError(self.overrides.file, line, ".".join(str(part) for part in shown_path), text)

    def line_number(self, key_path: KeyPath) -> int:
        """Returns the 1-based line of a key path in the file."""
        return self.document.line_of(key_path)[0]


def _read_document(path: Path) -> YamlDocument:
    """Returns a document, empty if the file cannot be read any more."""
    try:
        return load_yaml(path.read_bytes())
    except (OSError, InvalidYamlError):
        return YamlDocument(None)


@dataclass(frozen=True, slots=True)
class _Location:
    """A key path. For each union value on the path, also the alternative that pydantic tried."""

    key_path: KeyPath
    union_branches: tuple[tuple[KeyPath, str], ...] = ()


def _location_of(loc: KeyPath, data: Any, *, missing: bool) -> _Location:
    """Converts a pydantic location to a key path, without the labels of unions.

    Args:
        missing: whether the last part is a missing key.
    """
    key_path: list[str | int] = []
    branches: list[tuple[KeyPath, str]] = []
    node = data
    for index, part in enumerate(loc):
        if _has_child(node, part):
            node = node[part]
        elif not (missing and index == len(loc) - 1):
            branches.append((tuple(key_path), str(part)))
            continue
        key_path.append(part)
    return _Location(tuple(key_path), tuple(branches))


def _value_at(key_path: KeyPath, data: Any) -> Any:
    """Returns the value at a key path; None if there is none."""
    for part in key_path:
        if not _has_child(data, part):
            return None
        data = data[part]
    return data


def _has_child(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


@dataclass(frozen=True, slots=True)
class _PydanticError:
    error: ErrorDetails
    location: _Location

    @property
    def key_path(self) -> KeyPath:
        return self.location.key_path


def to_spec_errors(error: ValidationError, declaration: Declaration, model: type[BaseModel]) -> list[SpecError]:
    """Converts a pydantic validation error to spec errors, in the order of the file."""
    split_types = list(_split_types(declaration.data, ()))
    problems = [
        _PydanticError(
            details, _location_of(_selected_source_path(details["loc"], declaration), declaration.data, missing=missing)
        )
        for details in error.errors()
        for missing in [details["type"] == "missing"]
    ]
    problems = [problem for problem in problems if not _is_consequence(problem, split_types, declaration)]
    alternatives = _union_errors(problems)
    located = [
        declaration.error_at(type_.key_path, f'quote it, because of its comma: type: "{type_.text}"')
        for type_ in split_types
    ]
    for problem in problems:
        value = next((key_path for key_path, _ in problem.location.union_branches if key_path in alternatives), None)
        if value is None:
            located.append(_to_spec_error(problem, declaration, model))
            continue
        alternatives_tried = alternatives[value]
        inside = [other for other in alternatives_tried if _is_inside(other, value, declaration)]
        if problem in inside:
            located.append(_to_spec_error(problem, declaration, model))
        elif not inside and problem is alternatives_tried[0]:
            errors = [(other.error["type"], other.error.get("ctx", {})) for other in alternatives_tried]
            located.append(declaration.error_at(value, union_error_message(errors, _value_at(value, declaration.data))))
    return sorted(dict.fromkeys(located), key=lambda item: (str(item.file) != str(declaration.path), item.line))


def _to_spec_error(problem: _PydanticError, declaration: Declaration, model: type[BaseModel]) -> SpecError:
    error, key_path = problem.error, problem.key_path
    context: Mapping[str, Any] = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return declaration.error_at(
            key_path, unknown_key_message(str(key_path[-1]), _allowed_keys(error["loc"], model))
        )
    if error["type"].startswith("union_tag"):
        key_path = (*key_path, "kind")
    text = error_message(error["type"], error["input"], context, message=error["msg"])
    related = context.get("related", ())
    if related:
        above = error["loc"][: len(error["loc"]) - context["depth"]]
        text += f"; also on {format_lines(declaration.line_number((*above, *other)) for other in related)}"
    return declaration.error_at(key_path, text)


def _union_errors(problems: list[_PydanticError]) -> dict[KeyPath, list[_PydanticError]]:
    """Groups the errors of values that match no type of a union, by the key path of the value."""
    labels_by_path: dict[KeyPath, set[str]] = {}
    for problem in problems:
        for key_path, label in problem.location.union_branches:
            labels_by_path.setdefault(key_path, set()).add(label)
    return {
        value: [
            problem for problem in problems if any(key_path == value for key_path, _ in problem.location.union_branches)
        ]
        for value, labels in labels_by_path.items()
        if len(labels) > 1
    }


def _is_inside(problem: _PydanticError, value: KeyPath, declaration: Declaration) -> bool:
    """Returns whether an error lies inside a value. The author then probably meant this alternative of the union."""
    return isinstance(_value_at(value, declaration.data), Mapping | list) and len(problem.key_path) > len(value)


@dataclass(frozen=True, slots=True)
class _SplitType:
    """A column type that YAML split at its comma: `{type: decimal(12,2)}` has the keys `type` and `2)`."""

    key_path: KeyPath
    fragments: frozenset[str]
    text: str


def _split_types(node: Any, key_path: KeyPath) -> Iterator[_SplitType]:
    if isinstance(node, Mapping):
        kind = node.get("type")
        if isinstance(kind, str) and not _has_balanced_brackets(kind):
            yield from _rejoin_type(node, kind, key_path)
        for key, value in node.items():
            yield from _split_types(value, (*key_path, str(key)))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _split_types(value, (*key_path, index))


def _rejoin_type(node: Mapping[Any, Any], kind: str, key_path: KeyPath) -> Iterator[_SplitType]:
    keys = [str(key) for key in node]
    fragments: list[str] = []
    for key in keys[keys.index("type") + 1 :]:
        if node.get(key, "") is not None and key in node:
            return
        fragments.append(key)
        text = ",".join([kind, *fragments])
        if _has_balanced_brackets(text):
            yield _SplitType((*key_path, "type"), frozenset(fragments), text)
            return


def _has_balanced_brackets(text: str) -> bool:
    return all(text.count(opening) <= text.count(closing) for opening, closing in _BRACKETS.items())


def _is_consequence(problem: _PydanticError, split_types: list[_SplitType], declaration: Declaration) -> bool:
    """Returns whether an error only follows from another one: it concerns one branch of a union type, or a list has too
    few items because some are invalid.
    """
    key_path, kind = problem.key_path, problem.error["type"]
    for type_ in split_types:
        if key_path[:-1] == type_.key_path[:-1] and (
            key_path == type_.key_path or str(key_path[-1]) in type_.fragments
        ):
            return True
    declared_items = _value_at(key_path, declaration.data)
    context = problem.error.get("ctx", {})
    return kind == "too_short" and isinstance(declared_items, list) and len(declared_items) >= context["min_length"]


def _selected_source_path(loc: KeyPath, declaration: Declaration) -> KeyPath:
    """Returns the key path in `sources` for an error in the source that `source` selects by name."""
    sources, name = declaration.data.get("sources"), declaration.data.get("source")
    if loc[:1] == ("source",) and isinstance(sources, Mapping) and isinstance(name, str) and name in sources:
        return ("sources", name, *loc[1:])
    return loc


def _allowed_keys(loc: KeyPath, model: type[BaseModel]) -> set[str]:
    """Returns the keys that the spec allows at a pydantic location."""
    candidates, names = [model], _yaml_keys(model)
    for part in loc:
        matching = [inner for inner in candidates if len(candidates) > 1 and part in _union_labels(inner)]
        if matching:
            candidates, names = matching, _yaml_keys(matching[0])
            continue
        names = {name for inner in candidates for name in _yaml_keys(inner)}
        fields = [inner.model_fields[part] for inner in candidates if part in inner.model_fields]
        if fields:
            candidates = [inner for field in fields for inner in _models_in_annotation(field.annotation)] or candidates
    return names


def _yaml_keys(model: type[BaseModel]) -> set[str]:
    """Returns the keys of a model as written in YAML. A key that is a Python keyword, such as `from`, is an alias."""
    return {field.alias or name for name, field in model.model_fields.items()}


def _union_labels(model: type[BaseModel]) -> tuple[str, ...]:
    """Returns the labels that pydantic uses for a model in the location of an error."""
    kind = model.model_fields.get("kind")
    return (model.__name__, *(typing.get_args(kind.annotation) if kind else ()))


def _models_in_annotation(annotation: Any) -> list[type[BaseModel]]:
    """Returns all models in a type annotation, nested ones included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return [model for argument in typing.get_args(annotation) for model in _models_in_annotation(argument)]
    return []
