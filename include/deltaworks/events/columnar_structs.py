"""Struct classes for events: one field per declared event field. msgspec decodes JSON directly into them.

Field values equal orjson's, except integers beyond 64 bits, which are kept exactly. Decoding raises for events with an
unknown field or another name; the caller then uses the row parser. Every field is decoded, so invalid JSON is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deltaworks.specs.base import format_path
from deltaworks.specs.types import Array, ColumnType, Map, Primitive

Path = tuple[str, ...]
#: Fields by name, each with its type or a nested dict of fields.
FieldTree = dict[str, Any]
_FIELD_TYPES: Mapping[str, Any] = {
    "string": str,
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
}
_astuple = msgspec.structs.astuple


class NotColumnarError(Exception):
    """Raised if these fields cannot form a struct; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class StructLayout:
    """Layout of an object in an event: its struct class, the paths of its fields, and the layout of nested objects by
    index.
    """

    struct_type: type[msgspec.Struct]
    paths: tuple[Path, ...]
    nested: tuple[tuple[int, StructLayout], ...]
    empty: msgspec.Struct

    def collect_values(self, objects: Sequence[Any], values: dict[Path, Sequence[Any]]) -> None:
        """Adds the field values of these structs to `values`, as one list per path. Absent and null values are None."""
        columns = list(zip(*map(_astuple, objects), strict=True))
        values.update(zip(self.paths, columns, strict=True))
        for index, inner in self.nested:
            column = columns[index]
            inner.collect_values(
                [inner.empty if struct is None else struct for struct in column] if None in column else column, values
            )


def add_field(tree: FieldTree, path: Path, kind: Any) -> None:
    """Adds the field at `path` with type `kind` to the tree.

    Raises:
        NotColumnarError: the field is an object with fields in the tree, or is nested in a field that is read
            completely.
    """
    subtree = tree
    for name in path[:-1]:
        subtree = subtree.setdefault(name, {})
        if type(subtree) is not dict:
            raise NotColumnarError(f"{format_path(path)} is inside a field that is read completely")
    if type(subtree.get(path[-1])) is dict:
        raise NotColumnarError(f"{format_path(path)} is read completely, and fields inside it as well")
    subtree[path[-1]] = kind


def create_layout(tree: FieldTree, *, tag: tuple[str, str] | None) -> StructLayout:
    """Creates the struct classes of an event type. `tag` is the path of the name field, and the name.

    Raises:
        NotColumnarError: msgspec does not accept a field name.
    """
    try:
        return _create_layout(tree, (), {} if tag is None else {"tag_field": tag[0], "tag": tag[1]})
    except (TypeError, ValueError) as error:
        raise NotColumnarError(f"a struct cannot have its fields: {error}") from None


def _create_layout(tree: FieldTree, prefix: Path, tagged: dict[str, Any]) -> StructLayout:
    fields, nested, rename = [], [], {}
    for index, (name, kind) in enumerate(tree.items()):
        attribute = f"f{index}"
        rename[attribute] = name
        field_type = kind
        if type(kind) is dict:
            inner = _create_layout(kind, (*prefix, name), {})
            nested.append((index, inner))
            field_type = inner.struct_type
        fields.append((attribute, field_type if field_type is Any else field_type | None, None))
    struct_type = msgspec.defstruct("Event", fields, rename=rename, forbid_unknown_fields=True, gc=False, **tagged)
    return StructLayout(struct_type, tuple((*prefix, name) for name in tree), tuple(nested), struct_type())


def nested_field_type(kind: ColumnType) -> Any:
    """Returns msgspec's type for a list or map column; Any if every value must be accepted."""
    match kind:
        case Array(Primitive(name)) if name in _FIELD_TYPES:
            return list.__class_getitem__(_FIELD_TYPES[name] | None)
        case Map(Primitive(name)) if name in _FIELD_TYPES:
            return dict.__class_getitem__((str, _FIELD_TYPES[name] | None))
    return Any


def create_decoder(kinds: Sequence[type[msgspec.Struct]], *, tag_field: str | None) -> msgspec.json.Decoder[Any]:
    """Creates a decoder that selects the struct by the event's name. Without a name field there is only one struct.

    Its `decode` raises one of `DECODE_ERRORS` for events that match no struct.
    """
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    if tag_field is not None and len(kinds) == 1:
        # msgspec treats the tag of a single struct as optional. A second struct that never matches makes it required.
        union |= msgspec.defstruct("Never", [("never", Any)], tag_field=tag_field, tag="", forbid_unknown_fields=True)
    return msgspec.json.Decoder(union)


#: Errors of decoding an event that matches no struct.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError)
