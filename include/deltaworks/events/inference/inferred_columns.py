"""Proposes the columns of a table: one per leaf field of its events, named after its path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from deltaworks.events.inference.envelope_inference import is_declarable
from deltaworks.events.inference.field_profiles import FieldProfile, Path
from deltaworks.events.inference.inferred_types import (
    SQL_KEYWORDS,
    InferredType,
    infer_field_type,
    name_words,
    split_words,
)
from deltaworks.specs.mutation import MUTABLE_COLUMNS
from deltaworks.specs.table import DUPLICATE_COLUMN, ENVELOPE_COLUMNS, RESCUED_COLUMN

MAX_COLUMNS = 40
#: Field names that are meaningless without the name of the enclosing object.
_VAGUE_NAMES = frozenset(
    split_words(
        "id uuid name type kind url uri href value key code status state title description label text count number "
        "size date time timestamp at ts email login slug path ref sha message body data created updated index position"
    )
)
_RESERVED = frozenset(
    {*(name for name, _ in ENVELOPE_COLUMNS), *MUTABLE_COLUMNS, RESCUED_COLUMN, DUPLICATE_COLUMN, "org_id"}
)
_MAX_NAME_LENGTH = 63
#: Number of values that suffices to infer a field's type.
_SUFFICIENT_VALUES = 200
_ID_LIKE_KEY = re.compile(r"[0-9]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9a-f]{16,}")
#: An object with many fields in total, but few in each event, is a map.
_MIN_MAP_KEYS, _MAX_MAP_KEY_SHARE = 20, 0.2


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A proposed column, and the number of the table's events that have its field."""

    name: str
    path: Path
    inferred: InferredType
    events: int


@dataclass(frozen=True, slots=True)
class ProposedColumns:
    """Proposed columns in field order, and the fields that get no column, by path with the reason."""

    columns: tuple[ProposedColumn, ...]
    omitted: Mapping[Path, str]


def propose_columns(
    events: FieldProfile,
    *,
    values_are_text: bool,
    envelope: Collection[Path],
    all_events: FieldProfile | None = None,
    max_columns: int = MAX_COLUMNS,
    min_events: int = 1,
) -> ProposedColumns:
    """Proposes columns for events of this profile. If there are too many fields, the most frequent ones are chosen.

    Args:
        envelope: paths that are already read as event_id, event_name and event_time.
        all_events: profile of all event types, used for fields that few events of this type have.
        min_events: minimum number of events that must have a field.
    """
    convert_maps(events)
    leaves: list[tuple[Path, InferredType, int]] = []
    omitted: dict[Path, str] = {}
    path_counts = Counter(path for path, _ in events.leaves())
    for path, profile in events.leaves():
        if path in envelope or profile.values < min_events:
            continue
        leaf = _infer_leaf(path, _most_informative(path, profile, all_events), values_are_text=values_are_text)
        if path_counts[path] > 1 or any(path == other[: len(path)] != other for other in path_counts):
            leaf = "an object in some events, a value in others"
        if isinstance(leaf, str):
            omitted[path] = leaf
        else:
            leaves.append((path, leaf, profile.values))
    chosen = sorted(range(len(leaves)), key=lambda index: (-leaves[index][2], len(leaves[index][0]), index))[
        :max_columns
    ]
    omitted |= {leaves[index][0]: "rare" for index in range(len(leaves)) if index not in set(chosen)}
    selected = [leaves[index] for index in sorted(chosen)]
    names = column_names([path for path, _, _ in selected])
    columns = (
        ProposedColumn(name, path, leaf, count) for name, (path, leaf, count) in zip(names, selected, strict=True)
    )
    return ProposedColumns(tuple(columns), omitted)


def _most_informative(path: Path, profile: FieldProfile, all_events: FieldProfile | None) -> FieldProfile:
    """Returns the field's profile in this event type, or in all events if this type has few values."""
    if all_events is None or profile.values >= _SUFFICIENT_VALUES:
        return profile
    candidate: FieldProfile | None = all_events
    for name in path:
        candidate = candidate.fields.get(name) if candidate is not None else None
    return profile if candidate is None or candidate.fields else candidate


def _infer_leaf(path: Path, profile: FieldProfile, *, values_are_text: bool) -> InferredType | str:
    if not is_declarable(path):
        return "its name cannot be declared as a path"
    return infer_field_type(path[-1], profile, values_are_text=values_are_text)


def convert_maps(profile: FieldProfile) -> None:
    """Converts objects with data as keys, such as ids, days or names, to maps."""
    for inner in profile.fields.values():
        convert_maps(inner)
        keys = len(inner.fields)
        if not keys:
            continue
        present = sum(field.values for field in inner.fields.values()) / (keys * max(1, inner.values))
        many = keys >= _MIN_MAP_KEYS and present <= _MAX_MAP_KEY_SHARE
        if many or all(_ID_LIKE_KEY.fullmatch(key) for key in inner.fields):
            inner.convert_to_map()


def column_names(paths: Sequence[Path]) -> list[str]:
    """Returns a unique column name per path: its last word, extended by preceding words if vague or already used."""
    names: list[str] = []
    used_names = set(_RESERVED)
    shortest = Counter(_snake_case(path[-1:]) for path in paths)
    for path in paths:
        short = _snake_case(path[-1:])
        first = 2 if len(path) > 1 and (short in _VAGUE_NAMES or shortest[short] > 1) else 1
        options = [_snake_case(path[-length:]) for length in range(min(first, len(path)), len(path) + 1)]
        options += [f"{options[-1][: _MAX_NAME_LENGTH - 4]}_{number}" for number in range(2, 1_000)]
        name = next(option for option in options if option not in used_names)
        used_names.add(name)
        names.append(name)
    return names


def _snake_case(path: Path) -> str:
    words = "_".join(re.sub(r"[^a-z0-9]", "", word) for part in path for word in name_words(part))
    name = re.sub(r"_+", "_", words).strip("_") or "field"
    name = f"{name}_field" if name in SQL_KEYWORDS else name
    return (name if name[0].isalpha() else f"f_{name}")[:_MAX_NAME_LENGTH].rstrip("_")
