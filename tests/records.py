"""Builds records of which a test names only the fields that matter to it."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def record_of(kind: type[T], **fields: Any) -> T:
    """Returns a record with these fields; other required ones are empty, zero or the first of the allowed values."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _empty(hints[name]) for name in _required(kind) if name not in fields} | fields)


def _required(kind: type[Any]) -> list[str]:
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [one.name for one in dataclasses.fields(kind) if one.default is one.default_factory is missing]
    return [name for name, field in kind.model_fields.items() if field.is_required()]


def _empty(hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _empty(arguments[0])
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in arguments else _empty(arguments[0])
    return {} if origin is not None and issubclass(origin, typing.Mapping) else (origin or hint)()
