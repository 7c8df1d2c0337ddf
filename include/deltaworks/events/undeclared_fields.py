"""Finds undeclared fields: fields of an event that no column of a table reads.

Only fields at the top level, and in objects from which the table reads some column, are compared. The event's name,
time and id count as read. A map or array column reads its object completely; a struct column reads only its declared
fields. Null values never count as undeclared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from deltaworks.events.lossless_numbers import dump_lossless, may_be_rounded, restore_literals
from deltaworks.events.reasons import ConversionError, ReasonCode, to_printable
from deltaworks.events.source_fields import PARTITION_FIELD, RECORD_FIELD
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline_sections import EventSpec
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import ColumnType, Struct, parse_type

#: Matches surrogates: invalid UTF-8 bytes in decoded text, and unpaired halves.
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Fields that are read, by name: None if the value is read completely, a nested dict if only parts are read.
ReadFields = dict[str, "ReadFields | None"]
Path = tuple[str, ...]
_JSON_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def read_fields(
    table: TableSpec, event: EventSpec, evolved: tuple[Path, ...] = (), lookup_fields: Iterable[str] = ()
) -> ReadFields:
    """Returns the fields of an event that `table` reads, including evolved columns (`evolved` has their paths)."""
    # These fields come from the record, the object key or look-ups, and not from the event.
    fields: ReadFields = dict.fromkeys((RECORD_FIELD, PARTITION_FIELD, *lookup_fields))
    for path in (*event.id, *event.time.path, event.name.path, *table.when):
        if path is not None:
            _mark_read(fields, path_names(path), None)
    for column in table.columns:
        _mark_read(fields, path_names(column.path), struct_fields(parse_type(column.type)))
    for evolved_path in evolved:
        _mark_read(fields, evolved_path, None)
    return fields


def struct_fields(kind: ColumnType) -> ReadFields | None:
    """Returns the fields that a column of a struct type reads; None if the type reads its value completely."""
    return {name: struct_fields(field) for name, field in kind.fields} if isinstance(kind, Struct) else None


def _mark_read(fields: ReadFields, path: Path, struct_fields: ReadFields | None) -> None:
    for name in path[:-1]:
        nested = fields.setdefault(name, {})
        if nested is None:
            return  # another column already reads the value completely
        fields = nested
    present = fields.get(path[-1], struct_fields)
    if present is None or struct_fields is None:
        fields[path[-1]] = None
        return
    for name, nested in struct_fields.items():
        _mark_read(present, (name,), nested)
    fields[path[-1]] = present


def undeclared_fields(event: dict[str, Any], fields: ReadFields) -> dict[str, Any]:
    """Returns the undeclared fields of an event, nested as in the event."""
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
        elif nested := undeclared_fields(value, inner):
            extra[name] = nested
    return extra


def leaf_fields(extra: dict[str, Any], fields: ReadFields, prefix: Path = ()) -> list[tuple[Path, Any]]:
    """Returns each undeclared field with its path. An object from which the table reads nothing is one field."""
    paths: list[tuple[Path, Any]] = []
    for name, value in extra.items():
        inner = fields.get(name)
        if inner is not None and type(value) is dict:
            paths.extend(leaf_fields(value, inner, (*prefix, name)))
        else:
            paths.append(((*prefix, name), value))
    return paths


def json_type(value: Any) -> str:
    """Returns the JSON type name of a value."""
    return _JSON_TYPES.get(type(value), "null")


def restore_field(extra: dict[str, Any], path: Path, value: Any) -> None:
    """Adds a field to the undeclared fields `extra`, at its path."""
    for name in path[:-1]:
        extra = extra.setdefault(name, {})
    extra[path[-1]] = value


def rescued_json(extra: dict[str, Any], load_lossless: Callable[[], Any]) -> str | None:
    """Returns the undeclared fields as JSON for the rescued column, with exact numbers; None if there are none.

    Args:
        load_lossless: returns the complete event with number literals; called if a number may have been rounded.
    """
    if not extra:
        return None
    try:
        text = json_text(extra)
        return dump_lossless(restore_literals(extra, load_lossless())).decode() if may_be_rounded(text) else text
    except TypeError:
        return text
    except ConversionError:
        return json_text(dict.fromkeys(extra, "(nested too deeply to store)"))


def json_text(value: Any) -> str:
    r"""Serializes a value as JSON. Invalid UTF-8 bytes are written as `\\xNN`.

    Raises:
        ConversionError: it is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested more deeply than orjson writes (it parses more), or invalid UTF-8
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as error:
        raise ConversionError(ReasonCode.MALFORMED, f"an undeclared field cannot be serialized: {error}") from None
    return _SURROGATE.sub(lambda match: "\\" + to_printable(match[0]), text)
