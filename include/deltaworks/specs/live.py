"""Spec of live tables, which a pipeline's stream updates within seconds.

`counts`: a streaming aggregation of events by window and group. `latest`: the newest row of each key, for as long as it
is not older than `expire_after_minutes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from deltaworks.specs.base import (
    KeyPath,
    Name,
    Problem,
    Spec,
    as_tuple,
    raise_problems,
    suggest_name,
)
from deltaworks.specs.keyed import ARRIVAL_COLUMNS, KEY_TYPES, KeyedTable, column_problem
from deltaworks.specs.spec_change_effects import NEXT_START, Edit, Effect
from deltaworks.specs.types import Decimal, parse_type

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec
    from deltaworks.specs.table import TableSpec

_LIVE_STATE = Edit(
    Effect.NEW_GENERATION,
    "Incompatible with the state of the running aggregation. Rename the live table, which then counts from the "
    "beginning; or recreate all tables: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over "
    "{pipeline}`.",
)
_REBUILT = Edit(Effect.RESTART, "The stream rebuilds the table from its input at its next start.")
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


def live_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields problems of live tables: unknown inputs, and columns of the wrong type."""
    bronze = {table.name: table for table in pipeline.tables}
    for index, live in enumerate(pipeline.live):
        if live.reads not in bronze:
            yield (
                ("live", index, "reads"),
                f"{live.name!r} reads unknown table {live.reads!r}; {suggest_name(live.reads, bronze)}",
            )
            continue
        check = _latest_problems if live.kind == "latest" else _count_problems
        yield from ((("live", index, *key_path), text) for key_path, text in check(live, bronze[live.reads]))


def _count_problems(live: LiveTableSpec, bronze: TableSpec) -> Iterator[tuple[KeyPath, str]]:
    if bronze.evolve == "add_columns":
        yield (
            ("reads",),
            f"{live.name!r} reads {live.reads!r}, whose columns can change, which would fail a live table's "
            f"query; declare evolve: rescue for {live.reads!r}",
        )
    if bronze.mutable is not None:
        yield (
            ("reads",),
            f"{live.reads!r} is mutable: rows would change after they were counted; use a gold table",
        )
    types = bronze.column_types()
    for position, name in enumerate(live.group_by):
        if name not in types:
            text = (
                f"{live.name!r} groups by {name}, which is not a column of {live.reads!r}; {suggest_name(name, types)}"
            )
            yield ("group_by", position), text
    used_names = ["window_start", "window_end", "window_date", "events", "updated_at", *live.group_by]
    for key, names, problem_of in (("sum", live.sum, _sum_problem), ("distinct", live.distinct, _distinct_problem)):
        for position, name in enumerate(names):
            problem = problem_of(name, types)
            if problem is None and f"{name}_{key}" in used_names:
                problem = f"the table would have two columns {name}_{key}; name each column once"
            if problem is not None:
                yield (key, position), problem
            used_names.append(f"{name}_{key}")


def _sum_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name not in types:
        return f"there is no column {name!r} in this table; {suggest_name(name, types)}"
    return f"{name!r} is {types[name]}; name a column of numbers" if sum_type(types[name]) is None else None


def _distinct_problem(name: str, types: Mapping[str, str]) -> str | None:
    return column_problem(name, types, KEY_TYPES, decimals=True)


def _latest_problems(live: LiveTableSpec, bronze: TableSpec) -> Iterator[tuple[KeyPath, str]]:
    if bronze.announces is not None:
        yield ("reads",), f"{live.reads!r} announces another table and has no event_time; read {bronze.announces.table}"
        return
    if bronze.mutable is not None:
        yield (
            ("reads",),
            f"{live.reads!r} is mutable: a live table would miss changes by requests; declare `keyed` for "
            f"{live.reads!r} instead",
        )
    types = bronze.column_types()
    for key, names, problem_of in (("key", live.key, _key_problem), ("keep", live.keep, _keep_problem)):
        for position, name in enumerate(names):
            problem = problem_of(name, types)
            if problem is None and name in (*names[:position], *(live.key if key == "keep" else ())):
                problem = f"{name!r} is named twice"
            if problem is not None:
                yield (key, position), problem


def _key_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name in LATEST_COLUMNS:
        return f"{name!r} decides which row is newer; use other columns as key"
    return column_problem(name, types, KEY_TYPES, decimals=True)


def _keep_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name not in types:
        return f"there is no column {name!r} in this table; {suggest_name(name, types)}"
    return f"{name!r} is always included; remove it" if name in LATEST_COLUMNS else None
