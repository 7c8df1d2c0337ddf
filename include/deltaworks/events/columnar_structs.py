"""Events as objects with a slot for each declared field, read by msgspec straight from their JSON.

What stands in a slot is what orjson would have made of it, but for whole numbers beyond 64 bits, which stay whole. An
event with a field that has no slot is refused, as is one with another name: whoever decodes reads it another way then.
Only what has a slot is built, so that nothing is skipped that a reader of JSON would have had to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deltaworks.specs.types import Array, ColumnType, Map, Primitive

Path = tuple[str, ...]
#: Fields by name: what type their slot is of, or the fields that lie below.
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
    """These fields cannot be slots; the text says why."""


@dataclass(frozen=True, slots=True)
class StructLayout:
    """An object of an event: its class, the paths of its slots, and the objects in it, each by its slot."""

    struct_type: type[msgspec.Struct]
    paths: tuple[Path, ...]
    nested: tuple[tuple[int, StructLayout], ...]
    empty: msgspec.Struct

    def collect_values(self, objects: Sequence[Any], values: dict[Path, Sequence[Any]]) -> None:
        """Add what the slots of these objects hold to `values`, by path; None where a field is absent or null."""
        columns = list(zip(*map(_astuple, objects), strict=True))
        values.update(zip(self.paths, columns, strict=True))
        for slot, inner in self.nested:
            held = columns[slot]
            inner.collect_values(
                [inner.empty if one is None else one for one in held] if None in held else held, values
            )


def add_field(tree: FieldTree, path: Path, kind: Any) -> None:
    """Give the field at a path a slot of this type.

    Raises:
        Unslotted: it is an object whose fields are read, or lies in one that is read whole.
    """
    below = tree
    for name in path[:-1]:
        below = below.setdefault(name, {})
        if type(below) is not dict:
            raise NotColumnarError(f"{'.'.join(path)} lies in a field that is read whole")
    if type(below.get(path[-1])) is dict:
        raise NotColumnarError(f"{'.'.join(path)} is read whole, and so are fields in it")
    below[path[-1]] = kind


def create_layout(tree: FieldTree, *, tag: tuple[str, str] | None) -> StructLayout:
    """The slots of events; `tag` is the field of their name, and the name.

    Raises:
        Unslotted: a field has a name that msgspec does not take.
    """
    try:
        return _create_layout(tree, (), {} if tag is None else {"tag_field": tag[0], "tag": tag[1]})
    except (TypeError, ValueError) as error:
        raise NotColumnarError(f"its fields have no slots: {error}") from None


def _create_layout(tree: FieldTree, above: Path, tagged: dict[str, Any]) -> StructLayout:
    fields, below, rename = [], [], {}
    for slot, (name, kind) in enumerate(tree.items()):
        attribute = f"f{slot}"
        rename[attribute] = name
        held = kind
        if type(kind) is dict:
            inner = _create_layout(kind, (*above, name), {})
            below.append((slot, inner))
            held = inner.struct_type
        fields.append((attribute, held if held is Any else held | None, None))
    made = msgspec.defstruct("Event", fields, rename=rename, forbid_unknown_fields=True, gc=False, **tagged)
    return StructLayout(made, tuple((*above, name) for name in tree), tuple(below), made())


def nested_field_type(kind: ColumnType) -> Any:
    """The type of a slot for a list or a map, so that nothing else is in it; Any where all is taken as it is."""
    match kind:
        case Array(Primitive(name)) if name in _FIELD_TYPES:
            return list.__class_getitem__(_FIELD_TYPES[name] | None)
        case Map(Primitive(name)) if name in _FIELD_TYPES:
            return dict.__class_getitem__((str, _FIELD_TYPES[name] | None))
    return Any


def create_decoder(kinds: Sequence[type[msgspec.Struct]], *, tag_field: str | None) -> msgspec.json.Decoder[Any]:
    """Decodes an event into the object that its name stands for; where there is no field of a name, into the only one.

    Its `decode` raises what `REFUSALS` lists where an event is for none of them.
    """
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    if tag_field is not None and len(kinds) == 1:
        # A name that may only be one could be left out: beside a name that nothing has it may not.
        union |= msgspec.defstruct("Never", [("never", Any)], tag_field=tag_field, tag="", forbid_unknown_fields=True)
    return msgspec.json.Decoder(union)


#: What decoding something raises that is not of the types.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError)
