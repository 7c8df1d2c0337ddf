"""Resolves few requests in this process, without Spark: the same intervals and entities as `resolve` and `entities`.

The timeline of each id, its periods and the chains of moves are those of `requests` and `interval_diff`; the docstrings
there describe them. Tests hold both implementations to the same oracle. Times are integers of any unit; those of
tables are microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deltaworks.specs.mutation import (
    DELETE,
    MOVE_OPERATIONS,
    OPERATIONS,
    RENAME_OPERATIONS,
    UNDELETE,
    UPDATE,
)

#: Beyond this number of requests Spark resolves a file in less time than its start takes.
MAX_REQUESTS: Final = 100_000
_ARRIVAL, _DEPARTURE, _UPDATED = 0, 1, 2
#: Organisation, id, and the time at which a period ends or a move happens.
Key = tuple[str, str, int | None]
#: Time, and sequence with a missing one first.
Order = tuple[int, tuple[bool, int]]
#: Order, value and field of an update; a missing value sorts first.
_Update = tuple[int, tuple[bool, int], tuple[bool, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request. Any value may be missing: then it takes no effect."""

    org_id: str
    op: str
    id: str
    time: int
    new_id: str | None = None
    name: str | None = None
    fields: Mapping[str, str | None] | None = None
    seq: int | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the request can take effect; see `requests.invalid_reason`."""
        if self.op not in OPERATIONS or None in (self.org_id, self.id, self.time):
            return False
        if self.op in RENAME_OPERATIONS and self.new_id is None:
            return False
        return self.op != UPDATE or bool(self.fields)

    @property
    def target(self) -> str:
        """The id that the request moves to; its own id if it is no rename."""
        return self.new_id if self.op in RENAME_OPERATIONS and self.new_id is not None else self.id

    @property
    def sequence_order(self) -> tuple[bool, int]:
        """Order among requests of the same time."""
        return self.seq is not None, self.seq or 0


@dataclass(slots=True, kw_only=True)
class _Entry:
    """An arrival, departure or update of an id; its period is from `since` to `until`, both departures."""

    org: str
    id: str
    deleted: bool
    kind: int
    request: RequestRow
    time: int
    origin: str = ""
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class _Destination:
    """The end of a chain of moves, or of its first move; the next one leaves `final_id` at `next_time`."""

    final_id: str
    deleted: bool
    next_time: int | None
    fields: Mapping[str, str | None]
    hops: int
    last: Order | None


@dataclass(frozen=True, slots=True)
class _Trace:
    """The timeline, the effective updates by end of their period with its start, and the destination of every move."""

    timeline: list[_Entry]
    updates: Mapping[Key, tuple[int | None, list[_Update]]]
    destinations: Mapping[Key, _Destination]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The outcome of requests for rows that arrived as `id` within a time range; see `resolve.INTERVAL_SCHEMA`."""

    org_id: str
    id: str
    valid_from: int | None
    valid_to: int | None
    final_id: str
    deleted: bool
    fields: Mapping[str, str | None] = field(default_factory=dict)
    hops: int
    last_time: int | None
    last_seq: int | None


def resolve_entities_locally(rows: Iterable[RequestRow]) -> Iterator[dict[str, Any]]:
    """Yields the entities of requests with their components, by organisation, origin and time."""
    requests = [row for row in rows if row.is_valid]
    trace = _trace(requests)
    named: dict[tuple[str, str, int | None, int | None], list[int | None]] = {}
    for entry in trace.timeline:
        if entry.deleted:
            continue
        first = named.setdefault((entry.org, entry.id, entry.since, entry.until), [None, None])
        at = 1 if entry.kind == _ARRIVAL and entry.request.op != "merge" else 0
        earliest = first[at]
        first[at] = entry.time if earliest is None else min(earliest, entry.time)
    components = connected_ids(requests)
    for (org, origin, _, until), (own, reached) in sorted(named.items(), key=lambda item: _order(item[0][:3])):
        if own is None or (reached is not None and own > reached):
            continue
        end = trace.destinations.get((org, origin, until)) if until is not None else None
        component, size = components.get((org, origin), (origin, 1))
        yield {
            "org_id": org,
            "origin_id": origin,
            "final_id": origin if end is None else None if end.deleted else end.final_id,
            "hops": 0 if end is None else end.hops,
            "component_id": component,
            "component_size": size,
        }


def resolve_locally(rows: Iterable[RequestRow]) -> list[Interval]:
    """Returns the intervals of requests, by organisation, id and time, as `resolve` does. Skips invalid requests."""
    trace = _trace(row for row in rows if row.is_valid)
    periods: list[tuple[Key, int | None, list[_Update], _Destination]] = []
    for entry in trace.timeline:
        if entry.kind == _DEPARTURE and not entry.deleted:
            key: Key = (entry.org, entry.id, entry.time)
            _, updates = trace.updates.get(key, (None, []))
            periods.append((key, entry.since, updates, trace.destinations[key]))
    for period, (since, updates) in trace.updates.items():
        if period[2] is None:
            periods.append((period, since, updates, _Destination(period[1], False, None, {}, 0, None)))
    intervals = [interval for period in periods for interval in _split(*period)]
    return sorted(intervals, key=lambda one: _order((one.org_id, one.id, one.valid_from)))


def _order(key: Key) -> tuple[str, str, bool, int]:
    org, name, time = key
    return org, name, time is not None, time or 0


def _split(key: Key, since: int | None, updates: list[_Update], end: _Destination) -> Iterator[Interval]:
    """Splits a period at the last update of each field. A part that changes nothing, or without time, is omitted."""
    org, name, until = key
    times = sorted({update[0] for update in updates})
    for valid_from, valid_to in zip([since, *times], [*times, until], strict=True):
        if valid_from == valid_to or (valid_to is None and until is None):
            continue
        later = _updates_after(updates, valid_from)
        last = _latest(end.last, later)
        yield Interval(
            org_id=org,
            id=name,
            valid_from=valid_from,
            valid_to=valid_to,
            final_id=end.final_id,
            deleted=end.deleted,
            fields={**_set_fields(later), **end.fields},
            hops=end.hops,
            last_time=None if last is None else last[0],
            last_seq=last[1][1] if last is not None and last[1][0] else None,
        )


def _updates_after(updates: Iterable[_Update], time: int | None) -> list[_Update]:
    return [update for update in updates if time is None or update[0] > time]


def _set_fields(updates: Iterable[_Update]) -> dict[str, str | None]:
    return {name: value if is_set else None for _, _, (is_set, value), name in updates}


def _latest(order: Order | None, updates: Iterable[_Update]) -> Order | None:
    return max([update[:2] for update in updates] + ([] if order is None else [order]), default=None)


def _trace(requests: Iterable[RequestRow]) -> _Trace:
    timeline = _timeline(_effective_requests(requests))
    updates = _last_updates(timeline)
    return _Trace(timeline, updates, _destinations(timeline, updates))


def _effective_requests(requests: Iterable[RequestRow]) -> Iterator[RequestRow]:
    """Yields all updates, and the last of several moves of one id at one time, without moves to the same id."""
    moves: dict[Key, RequestRow] = {}
    for row in requests:
        if row.op == UPDATE:
            yield row
        elif row.op in MOVE_OPERATIONS:
            key = (row.org_id, row.id, row.time)
            if key not in moves or _rank(moves[key]) < _rank(row):
                moves[key] = row
    for row in moves.values():
        if row.op not in RENAME_OPERATIONS or row.target != row.id:
            yield row


def _rank(move: RequestRow) -> tuple[tuple[bool, int], str, str]:
    return move.sequence_order, move.op, move.target


def _timeline(requests: Iterable[RequestRow]) -> list[_Entry]:
    places: dict[tuple[str, str, bool], list[_Entry]] = defaultdict(list)

    def add(row: RequestRow, name: str, deleted: bool, kind: int, origin: str = "") -> None:
        entry = _Entry(org=row.org_id, id=name, deleted=deleted, kind=kind, request=row, time=row.time, origin=origin)
        places[entry.org, name, deleted].append(entry)

    for row in requests:
        if row.op == UPDATE:
            add(row, row.id, False, _UPDATED)
        else:
            add(row, row.id, row.op == UNDELETE, _DEPARTURE)
            add(row, row.target, row.op == DELETE, _ARRIVAL, origin=row.id)
    for entries in places.values():
        entries.sort(key=lambda entry: (entry.time, -entry.kind))
        departure: int | None = None
        for entry in entries:
            entry.since = departure
            departure = entry.time if entry.kind == _DEPARTURE else departure
        departure = None
        for entry in reversed(entries):
            departure = entry.time if entry.kind == _DEPARTURE else departure
            entry.until = departure
    return [entry for entries in places.values() for entry in entries]


def _last_updates(timeline: Iterable[_Entry]) -> dict[Key, tuple[int | None, list[_Update]]]:
    """Returns the last update of each field, by organisation, id and end of the period."""
    last: dict[Key, dict[str, _Update]] = defaultdict(dict)
    since: dict[Key, int | None] = {}
    for entry in timeline:
        fields = entry.request.fields if entry.kind == _UPDATED else None
        for name, value in (fields or {}).items():
            key = (entry.org, entry.id, entry.until)
            update = (entry.time, entry.request.sequence_order, (value is not None, value or ""), name)
            last[key][name] = max(last[key].get(name, update), update)
            since[key] = entry.since
    return {key: (since[key], list(fields.values())) for key, fields in last.items()}


def _destinations(
    timeline: Iterable[_Entry], updates: Mapping[Key, tuple[int | None, list[_Update]]]
) -> dict[Key, _Destination]:
    """Follows every move to the end of its chain, by organisation, id and time of the move. Later moves come first."""
    destinations: dict[Key, _Destination] = {}
    arrivals = [entry for entry in timeline if entry.kind == _ARRIVAL]
    for entry in sorted(arrivals, key=lambda entry: entry.time, reverse=True):
        _, in_period = (None, []) if entry.deleted else updates.get((entry.org, entry.id, entry.until), (None, []))
        later = _updates_after(in_period, entry.time)
        fields, last = _set_fields(later), _latest((entry.time, entry.request.sequence_order), later)
        end = _Destination(entry.id, entry.deleted, entry.until, fields, 1, last)
        if entry.until is not None:
            onto = destinations[entry.org, entry.id, entry.until]
            # An update at the same time as the next move may have the higher sequence.
            furthest = max(order for order in (last, onto.last) if order is not None)
            fields = {**fields, **onto.fields}
            end = _Destination(onto.final_id, onto.deleted, None, fields, 1 + onto.hops, furthest)
        destinations[entry.org, entry.origin, entry.time] = end
    return destinations


def connected_ids(requests: Iterable[RequestRow]) -> dict[tuple[str, str], tuple[str, int]]:
    """Returns the smallest id and the number of ids of the component of each id that a valid rename or merge
    connects.
    """
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for row in requests:
        if row.is_valid and row.op in RENAME_OPERATIONS and row.id != row.target:
            first, second = sorted((root((row.org_id, row.id)), root((row.org_id, row.target))))
            parents[second] = first
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for node in parents:
        sizes[root(node)] += 1
    return {node: (root(node)[1], sizes[root(node)]) for node in parents}
