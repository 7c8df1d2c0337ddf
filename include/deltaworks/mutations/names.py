"""The mapping table: which name each id of an organisation has, replayed from its requests in time order.

An id has one name. A name given at a time goes to what the id names just before it; the moves of that time take it
along. Where what is moved comes to an id that has a name, or several come at once, the declared rule decides. The table
is a function of the requests, so that a request that arrives late ends like any other, and a second run finds nothing
to change. Data tables are not read or written: a rename of a name costs one row.
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

from deltaworks.mutations.requests import DELETE, MOVING, RENAMING, UNDELETE, refusal
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, NAMES_COLUMNS, ORG_COLUMN
from deltaworks.tables.arrow_types import arrow_schema

RENAME_NAME = "rename_name"
_KEY = (ORG_COLUMN, "id")
_NAMED = {name: kind for name, kind in NAMES_COLUMNS.items() if name not in (DELETED_COLUMN, MUTATION_COLUMN)}
_REQUEST = ("op", "id", "new_id", "name", "time", "seq")


@dataclass(frozen=True, slots=True, order=True)
class Given:
    """A name and when it was given. The later one is greater."""

    time: dt.datetime
    order: tuple[bool, int]
    name: str


@dataclass(frozen=True, slots=True)
class NameRequest:
    """A request as far as names go; one without `seq` comes before those of its time that have one."""

    op: str
    id: str
    new_id: str | None
    name: str | None
    time: dt.datetime
    seq: int | None

    @property
    def rank(self) -> tuple[tuple[bool, int], str, str]:
        """Of several moves of one id at one time the greatest acts."""
        return self.order, self.op, self.new_id or ""

    @property
    def order(self) -> tuple[bool, int]:
        """Its place among requests of one time."""
        return self.seq is not None, self.seq or 0

    @property
    def target(self) -> str:
        """The id it moves to."""
        return self.new_id if self.op in RENAMING and self.new_id is not None else self.id

    @property
    def leads_nowhere(self) -> bool:
        """Whether it leaves everything where it is."""
        return self.op in RENAMING and self.target == self.id


#: The rank of the move that brings a name, and the name.
_Arriving = tuple[tuple[tuple[bool, int], str, str], Given]


class NameBook:
    """The names of one organisation, as requests come in time order."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self.names: dict[str, Given] = {}
        self._deleted: dict[str, Given] = {}

    def replay(self, requests: Iterable[NameRequest]) -> dict[str, Given]:
        """Every name there is after all requests."""
        for _, at_once in groupby(sorted(requests, key=lambda each: each.time), key=lambda each: each.time):
            self._act(list(at_once))
        return self.names

    def _act(self, requests: list[NameRequest]) -> None:
        naming = [each for each in requests if each.op == RENAME_NAME and each.name is not None]
        for each in sorted(naming, key=lambda each: (each.order, each.name or "")):
            self.names[each.id] = Given(each.time, each.order, each.name or "")
        moves: dict[str, NameRequest] = {}
        for each in requests:
            if each.op in MOVING and (each.id not in moves or each.rank > moves[each.id].rank):
                moves[each.id] = each
        taken = [(each, self._take(each)) for each in moves.values() if not each.leads_nowhere]
        arriving: dict[tuple[bool, str], list[_Arriving]] = {}
        for each, given in taken:
            if given is not None:
                arriving.setdefault((each.op == DELETE, each.target), []).append((each.rank, given))
        for (gone, target), found in arriving.items():
            place = self._deleted if gone else self.names
            place[target] = self._settled(place.get(target), found)

    def _take(self, move: NameRequest) -> Given | None:
        place = self._deleted if move.op == UNDELETE else self.names
        return place.pop(move.id, None)

    def _settled(self, present: Given | None, arriving: list[_Arriving]) -> Given:
        if self._rule == "newest":
            return max([given for _, given in arriving] + ([] if present is None else [present]))
        if present is not None and self._rule == "keep_target":
            return present
        return max(arriving)[1]


def names_from(requests: DataFrame, *, rule: str) -> DataFrame:
    """The names that all requests of some organisations come to: org_id, id, name, named_at, seq.

    Organisations in which nothing was ever named take no part. The requests of one organisation about names and moves
    are replayed by one task, some 100 bytes each.
    """
    usable = requests.where(F.col("op").isin(RENAME_NAME, *MOVING) & refusal().isNull())
    named = usable.where((F.col("op") == RENAME_NAME) & F.col("name").isNotNull()).select(ORG_COLUMN).distinct()
    narrow = usable.join(named, ORG_COLUMN, "left_semi").select(ORG_COLUMN, *_REQUEST)

    schema = arrow_schema(_NAMED)

    def replay(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        requests = (NameRequest(**{name: row[name] for name in _REQUEST}) for row in rows.to_pylist())
        found = NameBook(rule).replay(requests)
        return pa.Table.from_pylist(list(_rows(key[0].as_py(), found)), schema=schema)

    ddl = ", ".join(f"{name} {kind}" for name, kind in _NAMED.items())
    return narrow.groupBy(ORG_COLUMN).applyInArrow(replay, ddl)


def _rows(organisation: str, names: Mapping[str, Given]) -> Iterator[dict[str, Any]]:
    for each_id, given in names.items():
        told, seq = given.order
        values = (organisation, each_id, given.name, given.time, seq if told else None)
        yield dict(zip(_NAMED, values, strict=True))


def name_changes(wanted: DataFrame, present: DataFrame) -> DataFrame:
    """What the mapping table lacks: rows of `wanted` that are not there like that, and those that are gone.

    Args:
        present: the mapping table's rows of the same organisations.
    """
    target, source = present.alias("present"), wanted.alias("wanted")
    both = target.join(source, list(_KEY), "full_outer")
    gone = F.col("wanted.name").isNull()
    values = [
        F.coalesce(F.col(f"wanted.{name}"), F.col(f"present.{name}")).alias(name) for name in _NAMED if name not in _KEY
    ]
    was_gone = F.coalesce(F.col(f"present.{DELETED_COLUMN}"), F.lit(False))
    same = [F.col(f"present.{name}").eqNullSafe(F.col(f"wanted.{name}")) for name in _NAMED if name not in _KEY]
    alike = (gone & was_gone) | (~gone & ~was_gone & _every(same))
    return both.where(~alike).select(*_KEY, *values, gone.alias(DELETED_COLUMN))


def merge_names(session: SparkSession, uri: str, changes: DataFrame, *, batch: int, organisations: Column) -> None:
    """Put the changes into the mapping table, as one commit."""
    same = [F.col(f"target.{name}") == F.col(f"source.{name}") for name in _KEY]
    columns = [name for name in NAMES_COLUMNS if name != MUTATION_COLUMN]
    values: dict[str, str | Column] = {name: F.col(f"source.{name}") for name in columns}
    values[MUTATION_COLUMN] = F.lit(batch).cast("long")
    (
        DeltaTable.forPath(session, uri)
        .alias("target")
        .merge(changes.alias("source"), organisations & _every(same))
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert(values=values)
        .execute()
    )


def _every(conditions: list[Column]) -> Column:
    first, *rest = conditions
    for each in rest:
        first = first & each
    return first
