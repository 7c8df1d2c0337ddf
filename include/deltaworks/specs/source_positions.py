"""Maps the locations of pydantic errors to positions in a YAML file: key path, line and allowed keys.

For unions pydantic inserts labels between the keys: the kind of a source, or the name of a class.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from deltaworks.specs.base import KeyPath


@dataclass(frozen=True, slots=True)
class Location:
    """A key path. For each union value on the path, also the alternative that pydantic tried."""

    key_path: KeyPath
    union_branches: tuple[tuple[KeyPath, str], ...] = ()


def location_of(loc: KeyPath, data: Any, *, missing: bool) -> Location:
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
    return Location(tuple(key_path), tuple(branches))


def value_at(key_path: KeyPath, data: Any) -> Any:
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


def line_of(document: Any, key_path: KeyPath) -> tuple[int, KeyPath]:
    """Returns the 1-based line of a key path. If the path does not exist, returns the line of its deepest existing
    part.

    Also returns the key path, up to the first part that does not exist.
    """
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    node, line = document, 1
    for index, part in enumerate(key_path):
        if isinstance(node, CommentedMap) and part in node:
            line = _line(node.lc.key, part, line)
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = _line(node.lc.item, part, line)
        else:
            return line, key_path[: index + 1]
        node = node[part]
    return line, key_path


def _line(position: Any, part: str | int, default: int) -> int:
    try:
        return int(position(part)[0]) + 1
    except (KeyError, TypeError):  # keys from a YAML merge have no line
        return default


def allowed_keys(loc: KeyPath, model: type[BaseModel]) -> set[str]:
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
