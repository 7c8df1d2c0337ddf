"""Where the fields that `privacy` speaks of lie among the slots of a type of event.

A field has a slot of its own, or lies within the value of one: where that is read whole, as lists are, or where nothing
else is read of what holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltaworks.events.columnar_structs import FieldTree, NotColumnarError, Path
from deltaworks.privacy.redactor import EventCondition, Redactor

Values = Mapping[Path, Sequence[Any]]
#: Of what type a value is that a condition may name.
_SCALARS: Final = frozenset({str, bool, int, float})
_MIN_INT64, _MAX_UINT64 = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StructFieldPath:
    """A field by its slot, and the names below that lead to it; none where it is the slot's own value."""

    field_path: Path
    subpath: Path = ()

    def value(self, values: Values, index: int) -> Any:
        """What an event has there; None where nothing."""
        value = values[self.field_path][index]
        for name in self.subpath:
            value = value.get(name) if type(value) is dict else None
        return value


def resolve_path(tree: FieldTree, path: Path, name_path: Path | None) -> StructFieldPath | None:
    """The slot of a field, which is given one where it has none; None where slots lie below it.

    Args:
        name_path: the field of the event's name, which has no slot and is all the same among the values.
    """
    below = tree
    for depth, name in enumerate(path, 1):
        if path[:depth] == name_path:
            return StructFieldPath(path[:depth], path[depth:])
        held = below.setdefault(name, Any)
        if type(held) is not dict:
            return StructFieldPath(path[:depth], path[depth:])
        below = held
    return None


def leaf_paths(tree: FieldTree, above: Path = ()) -> list[Path]:
    """The slots that hold values, and not objects with slots."""
    paths: list[Path] = []
    for name, kind in tree.items():
        paths += leaf_paths(kind, (*above, name)) if type(kind) is dict else [(*above, name)]
    return paths


class ColumnarCondition:
    """Which events have one of the values at every path, by their slots."""

    def __init__(self, condition: EventCondition | None, tree: FieldTree, name_path: Path | None) -> None:
        paths = [] if condition is None else condition.paths
        fields = [(resolve_path(tree, path, name_path), values) for path, values in paths]
        # Where slots lie below a path there is an object, which is none of the values.
        self._fields = [] if any(field is None for field, _ in fields) else fields

    def matching_indexes(self, values: Values, count: int, fallback_rows: set[int]) -> list[int]:
        """The places of these events, in order. Adds to `unsure` where that cannot be said."""
        places: Sequence[int] = range(count) if self._fields else ()
        for field, meant in self._fields:
            if field is None or values[field.field_path].count(None) == count:
                return []
            holding = []
            for place in places:
                value = field.value(values, place)
                if exceeds_64_bits(value):
                    fallback_rows.add(place)
                elif type(value) in _SCALARS and (type(value), value) in meant:
                    holding.append(place)
            places = holding
        return list(places)


class RedactedFields:
    """The slots of the fields that are stripped, and what becomes of their values.

    Raises:
        Unslotted: columns are read of what lies within such a field.
    """

    def __init__(self, walker: Redactor, tree: FieldTree, name_path: Path | None) -> None:
        self.fields: dict[Path, tuple[int, bool]] = {}
        names = [_path_names(item.path) for item in walker.spec.fields]
        for index, path in enumerate(names):
            field = resolve_path(tree, path, name_path)
            if field is None or field.field_path == name_path:
                raise NotColumnarError(f"{'.'.join(path)} is personal, and more than its value is read")
            self.fields[field.field_path] = index, not field.subpath
        child = walker.spec.regulation.child
        dropped = [] if child is None else [_path_names(path) for path in child.drop]
        fields = [resolve_path(tree, path, name_path) for path in dropped]
        #: Whether what is dropped of a child lies around or within what is stripped of everybody.
        self.child_needs_row_parser = any(field is None or field.field_path == name_path for field in fields) or any(
            one != other and (one[: len(other)] == other or other[: len(one)] == one)
            for one in dropped
            for other in (*names, *dropped)
        )
        self.child_fields = list(
            dict.fromkeys([*self.fields, *(field.field_path for field in fields if field is not None)])
        )


def _path_names(path: str) -> Path:
    return tuple(part.removesuffix("[]") for part in path.split("."))


def exceeds_64_bits(value: Any) -> bool:
    """Whether it is a whole number beyond 64 bits, of which the row path reads a double."""
    return type(value) is int and not _MIN_INT64 <= value <= _MAX_UINT64
