"""The columns of one table out of the fields its events have: leaves alone, named after their paths."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from deltaworks.events.inference.envelope_inference import is_declarable
from deltaworks.events.inference.field_profiles import Path, Profile
from deltaworks.events.inference.inferred_types import KEYWORDS, Leaf, leaf_of, words_in, words_of
from deltaworks.specs.mutation import MUTABLE_COLUMNS
from deltaworks.specs.table import DUPLICATE_COLUMN, ENVELOPE_COLUMNS, RESCUED_COLUMN

MOST_COLUMNS = 40
#: Names that say nothing without what is around them.
_VAGUE = frozenset(
    words_in(
        "id uuid name type kind url uri href value key code status state title description label text count number "
        "size date time timestamp at ts email login slug path ref sha message body data created updated index position"
    )
)
_RESERVED = frozenset(
    {*(name for name, _ in ENVELOPE_COLUMNS), *MUTABLE_COLUMNS, RESCUED_COLUMN, DUPLICATE_COLUMN, "org_id"}
)
_LONGEST_NAME = 63
#: So many values tell what a field holds.
_ENOUGH_VALUES = 200
_ID_KEY = re.compile(r"[0-9]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9a-f]{16,}")
#: An object with so many fields, of which each event has few, is a map.
_LEAST_KEYS_OF_A_MAP, _MOST_PRESENCE_IN_A_MAP = 20, 0.2


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A column, and how many of the table's events have its field."""

    name: str
    path: Path
    leaf: Leaf
    events: int


@dataclass(frozen=True, slots=True)
class ProposedColumns:
    """The columns in the order of their fields; fields without one by path, each with the reason."""

    columns: tuple[ProposedColumn, ...]
    omitted: Mapping[Path, str]


def columns_of(
    events: Profile,
    *,
    of_text: bool,
    envelope: Collection[Path],
    everywhere: Profile | None = None,
    most: int = MOST_COLUMNS,
    least_events: int = 1,
) -> ProposedColumns:
    """The columns for events that look so; those most events have where there are too many.

    Args:
        envelope: paths that every table has as its event_id, event_name and event_time.
        everywhere: the events of all types, which tell more of a field that few events of this one have.
        least_events: so many events have to have a field for it to become a column.
    """
    mark_maps(events)
    leaves: list[tuple[Path, Leaf, int]] = []
    omitted: dict[Path, str] = {}
    of_several = Counter(path for path, _ in events.leaves())
    for path, profile in events.leaves():
        if path in envelope or profile.values < least_events:
            continue
        leaf = _leaf(path, _telling(path, profile, everywhere), of_text=of_text)
        if of_several[path] > 1 or any(path == other[: len(path)] != other for other in of_several):
            leaf = "an object in some events, a value in others"
        if isinstance(leaf, str):
            omitted[path] = leaf
        else:
            leaves.append((path, leaf, profile.values))
    chosen = sorted(range(len(leaves)), key=lambda index: (-leaves[index][2], len(leaves[index][0]), index))[:most]
    omitted |= {leaves[index][0]: "rare" for index in range(len(leaves)) if index not in set(chosen)}
    kept = [leaves[index] for index in sorted(chosen)]
    names = column_names([path for path, _, _ in kept])
    columns = (ProposedColumn(name, path, leaf, count) for name, (path, leaf, count) in zip(names, kept, strict=True))
    return ProposedColumns(tuple(columns), omitted)


def _telling(path: Path, profile: Profile, everywhere: Profile | None) -> Profile:
    """What is known best of a field: its values in this type of events where they are many, else in all of them."""
    if everywhere is None or profile.values >= _ENOUGH_VALUES:
        return profile
    below: Profile | None = everywhere
    for name in path:
        below = below.fields.get(name) if below is not None else None
    return profile if below is None or below.fields else below


def _leaf(path: Path, profile: Profile, *, of_text: bool) -> Leaf | str:
    if not is_declarable(path):
        return "its name cannot be part of a path"
    return leaf_of(path[-1], profile, of_text=of_text)


def mark_maps(profile: Profile) -> None:
    """Take objects whose keys are data as maps: ids, days, names of people."""
    for inner in profile.fields.values():
        mark_maps(inner)
        keys = len(inner.fields)
        if not keys:
            continue
        present = sum(below.values for below in inner.fields.values()) / (keys * max(1, inner.values))
        many = keys >= _LEAST_KEYS_OF_A_MAP and present <= _MOST_PRESENCE_IN_A_MAP
        if many or all(_ID_KEY.fullmatch(key) for key in inner.fields):
            inner.become_map()


def column_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: its last word, with those before it where that is vague or taken twice."""
    names: list[str] = []
    taken = set(_RESERVED)
    shortest = Counter(_snake(path[-1:]) for path in paths)
    for path in paths:
        short = _snake(path[-1:])
        first = 2 if len(path) > 1 and (short in _VAGUE or shortest[short] > 1) else 1
        options = [_snake(path[-length:]) for length in range(min(first, len(path)), len(path) + 1)]
        options += [f"{options[-1][: _LONGEST_NAME - 4]}_{number}" for number in range(2, 1_000)]
        name = next(option for option in options if option not in taken)
        taken.add(name)
        names.append(name)
    return names


def _snake(path: Path) -> str:
    words = "_".join(re.sub(r"[^a-z0-9]", "", word) for part in path for word in words_of(part))
    name = re.sub(r"_+", "_", words).strip("_") or "field"
    name = f"{name}_field" if name in KEYWORDS else name
    return (name if name[0].isalpha() else f"f_{name}")[:_LONGEST_NAME].rstrip("_")
