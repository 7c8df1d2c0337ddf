"""State tables of mutations: the resolved intervals, and the mapping from ids to names.

The mapping contains the name of each id of an organisation. It is the result of replaying the requests in time order.
An id has at most one name. An assignment applies to the entity that the id names just before its time; moves at that
time also move the name. If a move targets an id with a name, or several names arrive at the same time, the declared
rule decides. The table is a function of the requests, so late requests need no special case and a repeated run changes
nothing. Data tables are neither read nor written: changing a name costs one row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.provenance import MUTATE, user_metadata
from deltaworks.maintenance.layout import Layout
from deltaworks.mutations.requests import invalid_reason
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.mutation import (
    DELETE,
    DELETED_COLUMN,
    INTERVALS_COLUMNS,
    MOVE_OPERATIONS,
    MUTATION_COLUMN,
    NAMES_COLUMNS,
    ORG_COLUMN,
    RENAME_OPERATIONS,
    UNDELETE,
    MutationsSpec,
)
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake

_INTERVAL_KEY = (ORG_COLUMN, "id", "valid_from")


def state_table_layouts(mutations: MutationsSpec) -> list[Layout]:
    """Returns the layouts of both tables."""
    columns: dict[str, Mapping[str, str]] = {
        mutations.intervals: INTERVALS_COLUMNS,
        mutations.names: NAMES_COLUMNS,
    }
    return [
        Layout(name=name, partition_by=(ORG_COLUMN,), zorder_by=("id",), types=types) for name, types in columns.items()
    ]


def ensure_state_tables(lake: Lake, spec: PipelineSpec, mutations: MutationsSpec) -> None:
    """Creates missing state tables."""
    metadata = user_metadata(pipeline=spec.pipeline, batch=0, operation=MUTATE)
    properties, descriptions = spec.maintenance.table_properties(), table_descriptions(spec)
    for layout in state_table_layouts(mutations):
        schema = arrow_schema(layout.types)
        key = paths.table(spec.pipeline, layout.name)
        ensure_described(
            lake,
            key,
            schema,
            descriptions[layout.name],
            user_metadata=metadata,
            partition_by=list(layout.partition_by),
            properties=properties,
        )


def interval_changes(stored: DataFrame, resolved: DataFrame) -> DataFrame:
    """Returns the difference between stored and `resolved` intervals. Rows to delete have `is_removed` true."""
    columns = [name for name in INTERVALS_COLUMNS if name not in _INTERVAL_KEY]
    same_key = [F.col(f"stored.{name}").eqNullSafe(F.col(f"resolved.{name}")) for name in _INTERVAL_KEY]
    pairs = stored.alias("stored").join(resolved.alias("resolved"), same_key, "full_outer")
    is_removed, is_new = F.col(f"resolved.{ORG_COLUMN}").isNull(), F.col(f"stored.{ORG_COLUMN}").isNull()
    equal_columns = [_comparable("stored", name).eqNullSafe(_comparable("resolved", name)) for name in columns]
    changed = is_removed | is_new
    for equal in equal_columns:
        changed = changed | ~equal
    key = [
        F.when(is_removed, F.col(f"stored.{name}")).otherwise(F.col(f"resolved.{name}")).alias(name)
        for name in _INTERVAL_KEY
    ]
    return pairs.where(changed).select(
        *key, *(F.col(f"resolved.{name}") for name in columns), is_removed.alias("is_removed")
    )


def _comparable(side: str, name: str) -> Column:
    column = F.col(f"{side}.{name}")
    return F.array_sort(F.map_entries(column)) if INTERVALS_COLUMNS[name].startswith("map") else column


def merge_intervals(session: SparkSession, uri: str, changes: DataFrame, *, organisations: Column) -> None:
    """Merges the changes into the table of intervals, as one commit."""
    same = organisations
    for name in _INTERVAL_KEY:
        same = same & F.col(f"target.{name}").eqNullSafe(F.col(f"source.{name}"))
    values: dict[str, str | Column] = {name: F.col(f"source.{name}") for name in INTERVALS_COLUMNS}
    (
        DeltaTable.forPath(session, uri)
        .alias("target")
        .merge(changes.alias("source"), same)
        .whenMatchedDelete("source.is_removed")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("NOT source.is_removed", values=values)
        .execute()
    )


RENAME_NAME = "rename_name"
_NAME_KEY = (ORG_COLUMN, "id")
_NAME_COLUMNS = {name: kind for name, kind in NAMES_COLUMNS.items() if name not in (DELETED_COLUMN, MUTATION_COLUMN)}
_REQUEST_COLUMNS = ("op", "id", "new_id", "name", "time", "seq")


@dataclass(frozen=True, slots=True, order=True)
class AssignedName:
    """A name with the time of its assignment. Ordered by time."""

    time: dt.datetime
    sequence_order: tuple[bool, int]
    name: str


@dataclass(frozen=True, slots=True)
class NameRequest:
    """The fields of a request that concern names. Requests without `seq` precede others of the same time."""

    op: str
    id: str
    new_id: str | None
    name: str | None
    time: dt.datetime
    seq: int | None

    @property
    def rank(self) -> tuple[tuple[bool, int], str, str]:
        """Precedence among moves of one id at one time; the greatest takes effect."""
        return self.sequence_order, self.op, self.new_id or ""

    @property
    def sequence_order(self) -> tuple[bool, int]:
        """Order among requests of the same time."""
        return self.seq is not None, self.seq or 0

    @property
    def target(self) -> str:
        """The id that the request moves to."""
        return self.new_id if self.op in RENAME_OPERATIONS and self.new_id is not None else self.id

    @property
    def is_noop(self) -> bool:
        """Whether the request moves an id to itself."""
        return self.op in RENAME_OPERATIONS and self.target == self.id


#: A name that arrives by a move, with the rank of the move.
_RankedName = tuple[tuple[tuple[bool, int], str, str], AssignedName]


class IdMapping:
    """The names of one organisation during the replay of its requests in time order."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self.names: dict[str, AssignedName] = {}
        self._deleted: dict[str, AssignedName] = {}

    def replay(self, requests: Iterable[NameRequest]) -> dict[str, AssignedName]:
        """Returns the names by id after all requests."""
        for _, simultaneous in groupby(sorted(requests, key=_request_time), key=_request_time):
            self._apply(list(simultaneous))
        return self.names

    def _apply(self, requests: list[NameRequest]) -> None:
        """Applies the requests of one time: assignments first, then moves."""
        assignments = [request for request in requests if request.op == RENAME_NAME and request.name is not None]
        for request in sorted(assignments, key=lambda request: (request.sequence_order, request.name or "")):
            self.names[request.id] = AssignedName(request.time, request.sequence_order, request.name or "")
        moves: dict[str, NameRequest] = {}
        for request in requests:
            if request.op in MOVE_OPERATIONS and (request.id not in moves or request.rank > moves[request.id].rank):
                moves[request.id] = request
        moved = [(move, self._pop_name(move)) for move in moves.values() if not move.is_noop]
        arriving: dict[tuple[bool, str], list[_RankedName]] = {}
        for move, name in moved:
            if name is not None:
                arriving.setdefault((move.op == DELETE, move.target), []).append((move.rank, name))
        for (is_deleted, target), names in arriving.items():
            mapping = self._deleted if is_deleted else self.names
            mapping[target] = self._choose_name(mapping.get(target), names)

    def _pop_name(self, move: NameRequest) -> AssignedName | None:
        mapping = self._deleted if move.op == UNDELETE else self.names
        return mapping.pop(move.id, None)

    def _choose_name(self, current: AssignedName | None, arriving: list[_RankedName]) -> AssignedName:
        if self._rule == "newest":
            return max([name for _, name in arriving] + ([] if current is None else [current]))
        if current is not None and self._rule == "keep_target":
            return current
        return max(arriving)[1]


def _request_time(request: NameRequest) -> dt.datetime:
    return request.time


def resolve_names(requests: DataFrame, *, rule: str) -> DataFrame:
    """Returns the names after all requests: org_id, id, name, named_at, seq.

    Skips organisations without names. One task replays all requests of one organisation and needs about 100 bytes per
    request.
    """
    usable = requests.where(F.col("op").isin(RENAME_NAME, *MOVE_OPERATIONS) & invalid_reason().isNull())
    organisations_with_names = (
        usable.where((F.col("op") == RENAME_NAME) & F.col("name").isNotNull()).select(ORG_COLUMN).distinct()
    )
    relevant = usable.join(organisations_with_names, ORG_COLUMN, "left_semi").select(ORG_COLUMN, *_REQUEST_COLUMNS)

    schema = arrow_schema(_NAME_COLUMNS)

    def replay(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        requests = (NameRequest(**{name: row[name] for name in _REQUEST_COLUMNS}) for row in rows.to_pylist())
        names = IdMapping(rule).replay(requests)
        return pa.Table.from_pylist(list(_name_rows(key[0].as_py(), names)), schema=schema)

    ddl = ", ".join(f"{name} {kind}" for name, kind in _NAME_COLUMNS.items())
    return relevant.groupBy(ORG_COLUMN).applyInArrow(replay, ddl)


def _name_rows(organisation: str, names: Mapping[str, AssignedName]) -> Iterator[dict[str, Any]]:
    for name_id, assigned in names.items():
        has_seq, seq = assigned.sequence_order
        values = (organisation, name_id, assigned.name, assigned.time, seq if has_seq else None)
        yield dict(zip(_NAME_COLUMNS, values, strict=True))


def name_changes(names: DataFrame, stored: DataFrame) -> DataFrame:
    """Returns the difference between the stored mapping and `names`: rows to write, and rows to mark as deleted.

    Args:
        stored: rows of the mapping table, of the same organisations.
    """
    target, source = stored.alias("stored"), names.alias("new")
    pairs = target.join(source, list(_NAME_KEY), "full_outer")
    is_removed = F.col("new.name").isNull()
    values = [
        F.when(is_removed, F.col(f"stored.{name}")).otherwise(F.col(f"new.{name}")).alias(name)
        for name in _NAME_COLUMNS
        if name not in _NAME_KEY
    ]
    was_deleted = F.coalesce(F.col(f"stored.{DELETED_COLUMN}"), F.lit(False))
    same = [F.col(f"stored.{name}").eqNullSafe(F.col(f"new.{name}")) for name in _NAME_COLUMNS if name not in _NAME_KEY]
    unchanged = (is_removed & was_deleted) | (~is_removed & ~was_deleted & _all_of(same))
    return pairs.where(~unchanged).select(*_NAME_KEY, *values, is_removed.alias(DELETED_COLUMN))


def merge_names(session: SparkSession, uri: str, changes: DataFrame, *, batch: int, organisations: Column) -> None:
    """Merges the changes into the mapping table, as one commit."""
    same = [F.col(f"target.{name}") == F.col(f"source.{name}") for name in _NAME_KEY]
    columns = [name for name in NAMES_COLUMNS if name != MUTATION_COLUMN]
    values: dict[str, str | Column] = {name: F.col(f"source.{name}") for name in columns}
    values[MUTATION_COLUMN] = F.lit(batch).cast("long")
    (
        DeltaTable.forPath(session, uri)
        .alias("target")
        .merge(changes.alias("source"), organisations & _all_of(same))
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert(values=values)
        .execute()
    )


def _all_of(conditions: list[Column]) -> Column:
    result, *remaining = conditions
    for condition in remaining:
        result = result & condition
    return result
