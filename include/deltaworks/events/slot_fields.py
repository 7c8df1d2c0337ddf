"""Where the fields that `privacy` speaks of lie among the slots of a type of event.

A field has a slot of its own, or lies within the value of one: where that is read whole, as lists are, or where nothing
else is read of what holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltaworks.events.slots import Path, Tree, Unslotted
from deltaworks.privacy.walker import Condition, Walker

Values = Mapping[Path, Sequence[Any]]
#: Of what type a value is that a condition may name.
_SCALARS: Final = frozenset({str, bool, int, float})
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SlotField:
    """A field by its slot, and the names below that lead to it; none where it is the slot's own value."""

    slot: Path
    below: Path = ()

    def value(self, values: Values, place: int) -> Any:
        """What an event has there; None where nothing."""
        value = values[self.slot][place]
        for name in self.below:
            value = value.get(name) if type(value) is dict else None
        return value


def slot_of(tree: Tree, path: Path, name_path: Path | None) -> SlotField | None:
    """The slot of a field, which is given one where it has none; None where slots lie below it.

    Args:
        name_path: the field of the event's name, which has no slot and is all the same among the values.
    """
    below = tree
    for depth, name in enumerate(path, 1):
        if path[:depth] == name_path:
            return SlotField(path[:depth], path[depth:])
        held = below.setdefault(name, Any)
        if type(held) is not dict:
            return SlotField(path[:depth], path[depth:])
        below = held
    return None


def leaves(tree: Tree, above: Path = ()) -> list[Path]:
    """The slots that hold values, and not objects with slots."""
    paths: list[Path] = []
    for name, kind in tree.items():
        paths += leaves(kind, (*above, name)) if type(kind) is dict else [(*above, name)]
    return paths


class SlotCondition:
    """Which events have one of the values at every path, by their slots."""

    def __init__(self, condition: Condition | None, tree: Tree, name_path: Path | None) -> None:
        paths = [] if condition is None else condition.paths
        fields = [(slot_of(tree, path, name_path), values) for path, values in paths]
        # Where slots lie below a path there is an object, which is none of the values.
        self._fields = [] if any(field is None for field, _ in fields) else fields

    def places(self, values: Values, count: int, unsure: set[int]) -> list[int]:
        """The places of these events, in order. Adds to `unsure` where that cannot be said."""
        places: Sequence[int] = range(count) if self._fields else ()
        for field, meant in self._fields:
            if field is None or values[field.slot].count(None) == count:
                return []
            holding = []
            for place in places:
                value = field.value(values, place)
                if is_wide(value):
                    unsure.add(place)
                elif type(value) in _SCALARS and (type(value), value) in meant:
                    holding.append(place)
            places = holding
        return list(places)


class StrippedFields:
    """The slots of the fields that are stripped, and what becomes of their values.

    Raises:
        Unslotted: columns are read of what lies within such a field.
    """

    def __init__(self, walker: Walker, tree: Tree, name_path: Path | None) -> None:
        self.slots: dict[Path, tuple[int, bool]] = {}
        names = [_names(item.path) for item in walker.spec.fields]
        for index, path in enumerate(names):
            field = slot_of(tree, path, name_path)
            if field is None or field.slot == name_path:
                raise Unslotted(f"{'.'.join(path)} is personal, and more than its value is read")
            self.slots[field.slot] = index, not field.below
        child = walker.spec.regulation.child
        dropped = [] if child is None else [_names(path) for path in child.drop]
        fields = [slot_of(tree, path, name_path) for path in dropped]
        #: Whether what is dropped of a child lies around or within what is stripped of everybody.
        self.child_is_unsure = any(field is None or field.slot == name_path for field in fields) or any(
            one != other and (one[: len(other)] == other or other[: len(one)] == one)
            for one in dropped
            for other in (*names, *dropped)
        )
        self.of_child = list(dict.fromkeys([*self.slots, *(field.slot for field in fields if field is not None)]))


def _names(path: str) -> Path:
    return tuple(part.removesuffix("[]") for part in path.split("."))


def is_wide(value: Any) -> bool:
    """Whether it is a whole number beyond 64 bits, of which the row path reads a double."""
    return type(value) is int and not _LOWEST <= value <= _HIGHEST
