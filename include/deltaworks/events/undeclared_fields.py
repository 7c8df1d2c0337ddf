"""The fields of an event that no column of a table takes.

Extra is what lies at the top of an event, or below an object from which the table reads a column, and is neither read
by a column nor the event's name, time or id. A column that takes an object whole (a map, an array) takes all of it;
of a struct, fields that are not declared are extra. Null is never extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.lossless_numbers import dump_lossless, may_be_rounded, restore_literals
from deltaworks.events.reasons import ReasonCode, to_printable
from deltaworks.events.source_fields import PARTITION_FIELD, RECORD_FIELD
from deltaworks.specs.event import EventSpec
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import ColumnType, Struct, parse_type

#: What stands in a text for a byte that is no UTF-8, and halves of characters.
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Names that are read: None where the value is taken whole, a tree where only some of what is below is.
ReadFields = dict[str, "ReadFields | None"]
Path = tuple[str, ...]
_JSON_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def read_fields(
    table: TableSpec, event: EventSpec, evolved: tuple[Path, ...] = (), lookup_fields: Iterable[str] = ()
) -> ReadFields:
    """What `table` reads of an event; `evolved` are the paths of columns it was given while it ran."""
    # Fields of a record, or of an object's key, are none of the event's own; nor is what was looked up, in `answers`.
    fields: ReadFields = dict.fromkeys((RECORD_FIELD, PARTITION_FIELD, *lookup_fields))
    for path in (*event.id, *event.time.path, event.name.path, *table.when):
        if path is not None:
            _mark_read(fields, tuple(path.split(".")), None)
    for column in table.columns:
        _mark_read(fields, tuple(column.path.split(".")), _struct_fields(parse_type(column.type)))
    for evolved_path in evolved:
        _mark_read(fields, evolved_path, None)
    return fields


def _struct_fields(kind: ColumnType) -> ReadFields | None:
    return {name: _struct_fields(field) for name, field in kind.fields} if isinstance(kind, Struct) else None


def _mark_read(fields: ReadFields, path: Path, inside: ReadFields | None) -> None:
    for name in path[:-1]:
        below = fields.setdefault(name, {})
        if below is None:
            return  # taken whole already
        fields = below
    present = fields.get(path[-1], inside)
    if present is None or inside is None:
        fields[path[-1]] = None
        return
    for name, below in inside.items():
        _mark_read(present, (name,), below)
    fields[path[-1]] = present


def undeclared_fields(event: dict[str, Any], fields: ReadFields) -> dict[str, Any]:
    """The extra fields of an event, where they were in it; empty where there are none."""
    extra: dict[str, Any] = {}
    for name, value in event.items():
        if value is None:
            continue
        if name not in fields:
            extra[name] = value
            continue
        inner = fields[name]
        if inner is None:
            continue
        if type(value) is not dict:
            extra[name] = value
        elif below := undeclared_fields(value, inner):
            extra[name] = below
    return extra


def leaf_fields(extra: dict[str, Any], fields: ReadFields, above: Path = ()) -> list[tuple[Path, Any]]:
    """Each extra field with its path. An object that the table knows nothing of is one field."""
    paths: list[tuple[Path, Any]] = []
    for name, value in extra.items():
        inner = fields.get(name)
        if inner is not None and type(value) is dict:
            paths.extend(leaf_fields(value, inner, (*above, name)))
        else:
            paths.append(((*above, name), value))
    return paths


def json_type(value: Any) -> str:
    """The type of a value by JSON's own names."""
    return _JSON_TYPES.get(type(value), "null")


def restore_field(extra: dict[str, Any], path: Path, value: Any) -> None:
    """Add one field to the extra ones, at its place."""
    for name in path[:-1]:
        extra = extra.setdefault(name, {})
    extra[path[-1]] = value


def rescued_json(extra: dict[str, Any], load_lossless: Callable[[], Any]) -> str | None:
    """The extra fields as JSON, numbers as they were sent; None where there are none.

    Args:
        exact: the whole event with its numbers as literals; called where a number may have been rounded.
    """
    if not extra:
        return None
    try:
        text = json_text(extra)
        return dump_lossless(restore_literals(extra, load_lossless())).decode() if may_be_rounded(text) else text
    except TypeError:
        return text
    except ConversionError:
        return json_text(dict.fromkeys(extra, "(nested too deeply to be kept)"))


def json_text(value: Any) -> str:
    """A value as JSON. Bytes of its texts that are no UTF-8 are written out, as `\\xNN`.

    Raises:
        Misfit: it is nested too deeply to be written.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested deeper than orjson writes, though it reads it; or a text is no UTF-8
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as error:
        raise ConversionError(ReasonCode.MALFORMED, f"a field that no column takes cannot be kept: {error}") from None
    return _SURROGATE.sub(lambda match: "\\" + to_printable(match[0]), text)
