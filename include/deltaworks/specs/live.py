"""Spec of live tables, which a pipeline's stream updates within seconds.

`counts`: a streaming aggregation of events by window and group. `latest`: the newest row of each key, for as long as it
is not older than `expire_after_minutes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from deltaworks.specs.base import (
    Name,
    Problem,
    Spec,
    as_tuple,
    raise_problems,
)
from deltaworks.specs.keyed import ARRIVAL_COLUMNS, KeyedTable
from deltaworks.specs.spec_change_effects import NEXT_START, Edit, Effect
from deltaworks.specs.types import Decimal, parse_type

if TYPE_CHECKING:
    from deltaworks.specs.table import TableSpec

_LIVE_STATE = Edit(
    Effect.NEW_GENERATION,
    "Incompatible with the state of the running aggregation. Rename the live table, which then counts from the "
    "beginning; or recreate all tables: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over "
    "{pipeline}`.",
)
_REBUILT = Edit(Effect.RESTART, "The stream rebuilds the table from its input at its next start.")
#: Partition columns of every `counts` table.
LIVE_PARTITION: Final = ("window_date",)
#: Columns of every `latest` table in addition to `key` and `keep`: they decide which row is newer.
LATEST_COLUMNS: Final = ("event_time", *ARRIVAL_COLUMNS)
#: Types that can be summed, with the type of the sum.
_SUM_TYPES: Final[Mapping[str, str]] = {"int": "long", "long": "long", "float": "double", "double": "double"}
_MAX_DECIMAL_DIGITS = 38
_EXTRA_SUM_DIGITS = 10
_COUNTS_KEYS = (
    "window_minutes",
    "watermark_minutes",
    "group_by",
    "sum",
    "distinct",
    "distinct_error_percent",
)
_LATEST_KEYS = ("key", "keep", "expire_after_minutes")

Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class LiveTableSpec(Spec):
    """A live table: event counts by window and group, or the newest row of each key."""

    name: Annotated[Name, _LIVE_STATE]
    description: Annotated[str, NEXT_START] = ""
    reads: Annotated[Name, _LIVE_STATE]
    kind: Annotated[Literal["counts", "latest"], _LIVE_STATE] = "counts"
    window_minutes: Annotated[int, _LIVE_STATE] = Field(default=60, ge=1)
    watermark_minutes: Annotated[int, NEXT_START] = Field(default=180, ge=1)
    group_by: Annotated[tuple[str, ...], _LIVE_STATE] = ()
    sum: Annotated[Names, _LIVE_STATE] = Field(default=(), description="counts only: numeric columns to sum")
    distinct: Annotated[Names, _LIVE_STATE] = Field(
        default=(), description="counts only: columns whose distinct values are counted"
    )
    distinct_error_percent: Annotated[float, _LIVE_STATE] = Field(
        default=0.0,
        ge=0,
        le=10,
        description=("counts only: 0 counts distinct values exactly, in memory; otherwise with a sketch"),
    )
    key: Annotated[Names, _REBUILT] = Field(default=(), description="latest only: key columns")
    keep: Annotated[Names, _REBUILT] = Field(default=(), description="latest only: columns in addition to the key")
    expire_after_minutes: Annotated[int | None, _REBUILT] = Field(
        default=None, ge=1, description="latest only: age, relative to the newest row, after which a row is removed"
    )
    trigger_seconds: Annotated[float, NEXT_START] = Field(default=60, gt=0)

    @model_validator(mode="after")
    def _check_kind_keys(self) -> Self:
        problems: list[Problem] = []
        declared = self.model_fields_set
        if self.kind == "latest":
            advice = "`latest` has one row per key and no window; remove it, and declare `expire_after_minutes`"
            problems += [
                ((name,), f"{name} is a key of `kind: counts`: {advice}") for name in _COUNTS_KEYS if name in declared
            ]
            if not self.key:
                problems.append((("key",), "give the key columns, such as key: [view_id]"))
            if self.expire_after_minutes is None:
                problems.append(
                    (("expire_after_minutes",), "give the maximum age of a row, such as expire_after_minutes: 30")
                )
        else:
            advice = "write `kind: latest`, or remove it"
            problems += [
                ((name,), f"{name} is a key of `kind: latest`: {advice}")
                for name in _LATEST_KEYS
                if getattr(self, name)
            ]
            if self.distinct_error_percent and not self.distinct:
                text = "it requires `distinct`: declare the columns whose distinct values are counted, or remove it"
                problems.append((("distinct_error_percent",), text))
        raise_problems(problems)
        return self

    @model_serializer(mode="wrap")
    def _omit_unused_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits keys that only the other kind has, so that the serialized spec can be parsed again."""
        dumped: dict[str, Any] = handler(self)
        if self.kind == "latest":
            for name in _COUNTS_KEYS:
                dumped.pop(name, None)
        return dumped

    def sum_columns(self, types: Mapping[str, str]) -> dict[str, str]:
        """Returns the columns of sums, named `<column>_sum`, with types derived from the input's types."""
        return {f"{name}_sum": sum_type(types[name]) or "" for name in self.sum}

    def count_columns(self, types: Mapping[str, str]) -> dict[str, str]:
        """Returns the types of a `counts` table by column, in the table's column order, from the input's types."""
        window = {"window_start": "timestamp", "window_end": "timestamp", "window_date": "date"}
        groups = {name: types[name] for name in self.group_by}
        distinct = dict.fromkeys(self.distinct_columns, "long")
        return window | groups | {"events": "long"} | self.sum_columns(types) | distinct | {"updated_at": "timestamp"}

    @property
    def distinct_columns(self) -> tuple[str, ...]:
        """Names of the columns with distinct counts, `<column>_distinct`."""
        return tuple(f"{name}_distinct" for name in self.distinct)


def sum_type(type_: str) -> str | None:
    """Returns the type of the sum of a column; None if its type cannot be summed."""
    parsed = parse_type(type_)
    if isinstance(parsed, Decimal):
        return f"decimal({min(_MAX_DECIMAL_DIGITS, parsed.precision + _EXTRA_SUM_DIGITS)},{parsed.scale})"
    return _SUM_TYPES.get(type_)


def latest_table(history: TableSpec, live: LiveTableSpec) -> KeyedTable:
    """Returns a live table of kind `latest` as a keyed table."""
    types = history.column_types()
    return KeyedTable(
        name=live.name,
        history=history.name,
        by=live.key,
        newest_by=("event_time",),
        deleted_when={},
        partition_by=(),
        history_types={name: types[name] for name in (*live.key, *live.keep, *LATEST_COLUMNS)},
        is_history_mutable=False,
        expire_after_minutes=live.expire_after_minutes,
        trigger_seconds=live.trigger_seconds,
    )
