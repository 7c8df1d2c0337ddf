"""Spec of a keyed table: the newest row of each key of a bronze table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Name, Problem, Spec, as_tuple, suggest_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.specs.spec_change_effects import Edit, Effect
from deltaworks.specs.types import Decimal, parse_type

#: Types that all engines compare and sort in the same way.
KEY_TYPES = ("string", "int", "long", "boolean", "date", "timestamp")
ORDER_TYPES = ("string", "int", "long", "date", "timestamp")
PARTITION_TYPES = ("string", "int", "long", "boolean", "date")
DELETION_TYPES: dict[str, type] = {"string": str, "int": int, "long": int, "boolean": bool}
#: Columns with the row's origin, unique in a table. Of equally new rows, the last to arrive wins.
ARRIVAL_COLUMNS = ("_seq", "_position")

_REBUILT = Edit(Effect.RESTART, "The stream rebuilds the keyed table from the rows of {table} at its next start.")
_RENAMED = Edit(
    Effect.RESTART,
    "The stream builds the new table from the rows of {table} at its next start. The old table remains and is no "
    "longer updated.",
)
_FIXED_ON_DISK = Edit(
    Effect.NEW_GENERATION,
    "Files cannot move to other partitions. Rename the keyed table: the stream builds it from the rows of "
    "{table} at its next start.",
)


class KeyedSpec(Spec):
    """A separate table with the newest row of each key.

    Rows are compared by `newest_by`, column by column; null is the oldest. Of equally new rows the last arrival wins. A
    row with null in a column of `by` has no key and is left out.
    """

    table: Annotated[Name | None, _RENAMED] = Field(
        default=None, description="name of the keyed table; by default `latest_` and the name of this table"
    )
    by: Annotated[tuple[str, ...], BeforeValidator(as_tuple), _REBUILT] = Field(min_length=1, description="key columns")
    newest_by: Annotated[tuple[str, ...], BeforeValidator(as_tuple), _REBUILT] = Field(
        default=("event_time",),
        min_length=1,
        description=("columns that decide which row is newer, most significant first"),
    )
    deleted_when: Annotated[dict[str, Annotated[tuple[str | int | bool, ...], BeforeValidator(as_tuple)]], _REBUILT] = (
        Field(default_factory=dict, description="column values of the newest row that mark its key as deleted")
    )
    partition_by: Annotated[tuple[str, ...], _FIXED_ON_DISK] = Field(
        default=(), description="partition columns, from `by`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """A keyed table, derived from its history: the bronze table with all rows.

    With `expire_after_minutes` it is a live table: rows this much older than the newest row are removed, and it is
    updated every `trigger_seconds`. Other keyed tables are updated after each batch. `history_types` are the types of
    the history's columns.
    """

    name: str
    history: str
    by: tuple[str, ...]
    newest_by: tuple[str, ...]
    deleted_when: Mapping[str, tuple[str | int | bool, ...]]
    partition_by: tuple[str, ...]
    history_types: Mapping[str, str]
    is_history_mutable: bool
    expire_after_minutes: int | None = None
    trigger_seconds: float = 0.0

    @property
    def types(self) -> Mapping[str, str]:
        """The table's columns with types: those of the history and, if rows can mark deletions, a deletion flag."""
        return {**self.history_types, **({DELETED_COLUMN: "boolean"} if self.has_tombstones else {})}

    @property
    def sort_columns(self) -> tuple[str, ...]:
        """Columns that decide which of two rows of a key is newer, most significant first. No two rows are equal in all
        of them.
        """
        return (*self.newest_by, *(name for name in ARRIVAL_COLUMNS if name not in self.newest_by))

    @property
    def has_tombstones(self) -> bool:
        """Whether deleted keys remain as tombstones, so that an older row does not restore them."""
        return bool(self.deleted_when)

    def digest(self, history_id: str) -> str:
        """Returns a short digest of the declaration and the id of the history. If it changes, the table must be
        rebuilt.
        """
        parts: list[object] = [history_id, list(self.by), list(self.newest_by), sorted(self.deleted_when.items())]
        if self.expire_after_minutes is not None:
            parts += [sorted(self.history_types.items()), self.expire_after_minutes]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def keyed_problems(keyed: KeyedSpec, types: Mapping[str, str]) -> Iterator[Problem]:
    """Yields conflicts between a keyed table and the columns of its history."""
    for name, columns, allowed in (("by", keyed.by, KEY_TYPES), ("newest_by", keyed.newest_by, ORDER_TYPES)):
        for column in columns:
            problem = column_problem(column, types, allowed, decimals=True)
            if problem:
                yield ("keyed", name), problem
        for column in sorted({column for column in columns if columns.count(column) > 1}):
            yield ("keyed", name), f"{column!r} is named twice"
    yield from _deletion_problems(keyed, types)
    for column in keyed.partition_by:
        if column not in keyed.by:
            yield (
                ("keyed", "partition_by"),
                f"{column!r} is not in `by`: a key would move between partitions; {suggest_name(column, keyed.by)}",
            )
        elif column in types and types[column] not in PARTITION_TYPES:
            yield ("keyed", "partition_by"), f"{column!r} is {types[column]}, which is not a partition type"


def _deletion_problems(keyed: KeyedSpec, types: Mapping[str, str]) -> Iterator[Problem]:
    for column, values in keyed.deleted_when.items():
        key_path = ("keyed", "deleted_when", column)
        problem = column_problem(column, types, tuple(DELETION_TYPES))
        if problem:
            yield key_path, problem
            continue
        mismatches = [value for value in values if type(value) is not DELETION_TYPES[types[column]]]
        if mismatches:
            yield key_path, f"{column!r} is {types[column]}, and {mismatches[0]!r} is not"
        elif not values:
            yield key_path, "give a value"


def column_problem(
    column: str, types: Mapping[str, str], allowed: tuple[str, ...], *, decimals: bool = False
) -> str | None:
    """Returns the message for a column that is missing or of another type than allowed; None for a valid column."""
    if column not in types:
        return f"there is no column {column!r} in this table; {suggest_name(column, types)}"
    if types[column] in allowed or (decimals and isinstance(parse_type(types[column]), Decimal)):
        return None
    return f"{column!r} is {types[column]}; it must be {', '.join(allowed)}{' or a decimal' if decimals else ''}"
