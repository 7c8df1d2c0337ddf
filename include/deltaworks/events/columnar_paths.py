"""Maps the fields declared in `privacy` to struct fields of an event type.

A declared field either has its own struct field, or is nested in the value of one, for example in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltaworks.events.columnar_structs import FieldTree, NotColumnarError, Path
from deltaworks.privacy.tokens.redactor import EventCondition, Redactor
from deltaworks.specs.base import format_path, path_names, paths_overlap

Values = Mapping[Path, Sequence[Any]]
#: Types that a condition can compare.
_SCALARS: Final = frozenset({str, bool, int, float})
_MIN_INT64, _MAX_UINT64 = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StructFieldPath:
    """Location of a value: a struct field, and a path within the field's value. `subpath` is empty for the value
    itself.
    """

    field_path: Path
    subpath: Path = ()

    def value(self, values: Values, index: int) -> Any:
        """Returns the value of the event at `index`, or None."""
        value = values[self.field_path][index]
        for name in self.subpath:
            value = value.get(name) if type(value) is dict else None
        return value


def resolve_path(tree: FieldTree, path: Path, name_path: Path | None) -> StructFieldPath | None:
    """Returns the struct field that contains a path; adds a field if needed.

    Returns None if the path leads to an object whose fields are struct fields of their own.

    Args:
        name_path: the field of the event's name. It has no struct field, but its value is available.
    """
    subtree = tree
    for depth, name in enumerate(path, 1):
        if path[:depth] == name_path:
            return StructFieldPath(path[:depth], path[depth:])
        entry = subtree.setdefault(name, Any)
        if type(entry) is not dict:
            return StructFieldPath(path[:depth], path[depth:])
        subtree = entry
    return None


def leaf_paths(tree: FieldTree, prefix: Path = ()) -> list[Path]:
    """Returns the paths of all struct fields that hold values and not nested structs."""
    paths: list[Path] = []
    for name, kind in tree.items():
        paths += leaf_paths(kind, (*prefix, name)) if type(kind) is dict else [(*prefix, name)]
    return paths


class ColumnarCondition:
    """Selects the events in which every path has one of its expected values."""

    def __init__(self, condition: EventCondition | None, tree: FieldTree, name_path: Path | None) -> None:
        paths = [] if condition is None else condition.paths
        fields = [(resolve_path(tree, path, name_path), values) for path, values in paths]
        # Such a path leads to an object, which equals no expected value.
        self._fields = [] if any(field is None for field, _ in fields) else fields

    def matching_indexes(self, values: Values, count: int, fallback_rows: set[int]) -> list[int]:
        """Returns the sorted indexes of matching events; adds events that the row parser must check to
        `fallback_rows`."""
        indexes: Sequence[int] = range(count) if self._fields else ()
        for field, expected in self._fields:
            if field is None or values[field.field_path].count(None) == count:
                return []
            matching = []
            for index in indexes:
                value = field.value(values, index)
                if exceeds_64_bits(value):
                    fallback_rows.add(index)
                elif type(value) in _SCALARS and (type(value), value) in expected:
                    matching.append(index)
            indexes = matching
        return list(indexes)


class RedactedFields:
    """Struct fields to redact, with the index of their declaration in `privacy`.

    Raises:
        NotColumnarError: a column reads a field nested in a personal field.
    """

    def __init__(self, redactor: Redactor, tree: FieldTree, name_path: Path | None) -> None:
        self.fields: dict[Path, tuple[int, bool]] = {}
        names = [path_names(item.path) for item in redactor.spec.fields]
        for index, path in enumerate(names):
            field = resolve_path(tree, path, name_path)
            if field is None or field.field_path == name_path:
                raise NotColumnarError(f"columns read fields inside the personal field {format_path(path)}")
            self.fields[field.field_path] = index, not field.subpath
        child = redactor.spec.regulation.child
        dropped = [] if child is None else [path_names(path) for path in child.drop]
        fields = [resolve_path(tree, path, name_path) for path in dropped]
        #: True if fields to drop for children overlap with each other or with other personal fields; only the row
        #: parser supports this.
        self.child_needs_row_parser = any(field is None or field.field_path == name_path for field in fields) or any(
            one != other and paths_overlap(one, other) for one in dropped for other in (*names, *dropped)
        )
        self.child_fields = list(
            dict.fromkeys([*self.fields, *(field.field_path for field in fields if field is not None)])
        )


def exceeds_64_bits(value: Any) -> bool:
    """Returns whether a value is an integer beyond 64 bits, which the row parser reads as a double."""
    return type(value) is int and not _MIN_INT64 <= value <= _MAX_UINT64
