"""Reads requests from a CSV file with a header, one request per row, and resolves small files in memory.

Columns: `ts` (seconds since 1970 or ISO 8601), `old_id`, `new_id`, and optionally `org_id`, `seq`, `commit`, `op`
(default: rename) and `fields` (a JSON object, for an update). Rows of one commit are simultaneous; commits with the
same time are ordered by their smallest `seq`, else by their order in the file. Without commits, rows with the same time
are simultaneous.

Without Spark a small file has the same entities and intervals as `resolve` returns. The timeline of each id, its
periods and the chains of moves are those of `requests` and `interval_diff`; the docstrings there describe them. Tests
hold both implementations to the same oracle.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from deltaworks.errors import ConfigError
from deltaworks.specs.mutation import DELETE, MOVE_OPERATIONS, RENAME_OPERATIONS, UNDELETE, UPDATE

_REQUIRED_COLUMNS = ("ts", "old_id", "new_id")
_OPTIONAL_COLUMNS = ("org_id", "seq", "commit", "op", "fields")
_OPERATIONS = (*MOVE_OPERATIONS, UPDATE)
_MAX_REPORTED_ERRORS = 10
_ARROW_SCHEMA = pa.schema(
    [
        ("org_id", pa.string()),
        ("op", pa.string()),
        ("id", pa.string()),
        ("new_id", pa.string()),
        ("fields", pa.map_(pa.string(), pa.string())),
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
_HINT = (
    "The file is CSV with the columns ts, old_id, new_id and optionally org_id, seq, commit, op, fields; "
    "docs/reference/mutations.md describes them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFile:
    """The requests of a file.

    The time of a request is the ordinal of its moment in the file, so that commits with the same time stay separate.
    `original_times` has the time of each moment as written in the file, `ignored_columns` the unread columns.
    """

    requests: pa.Table
    original_times: tuple[str, ...]
    ignored_columns: tuple[str, ...]

    def original_time(self, moment: datetime | None) -> str | None:
        """Returns the time as written in the file for a time of resolved intervals."""
        return None if moment is None else self.original_times[_ordinal(moment)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One row of the file. `at_seconds` is its time since 1970. Without a `seq` column, `seq` is the line number."""

    line: int
    at_seconds: Decimal
    ts: str
    org_id: str
    commit: str
    seq: int | None
    op: str
    old_id: str
    new_id: str | None
    fields: Mapping[str, str | None] | None


def read_request_file(path: Path) -> RequestFile:
    """Reads the requests of a file.

    Raises:
        ConfigError: MUTATION_FILE_UNREADABLE, MUTATION_FILE_INVALID (the first ten errors, with line numbers).
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = _parse_header(path, next(reader, []))
            requests, errors = _parse_rows(reader, columns)
    except OSError as error:
        raise ConfigError(
            "MUTATION_FILE_UNREADABLE", f"{path} cannot be read: {error.strerror}.", hint="Give the path of a CSV file."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            "MUTATION_FILE_UNREADABLE", f"{path} is no UTF-8 text: {error.reason}.", hint="Save it as UTF-8."
        ) from error
    errors += _find_split_commits(requests)
    if errors:
        raise _invalid_file(path, sorted(errors))
    expected = {*_REQUIRED_COLUMNS, *_OPTIONAL_COLUMNS}
    moments = _moment_ordinals(requests)
    return RequestFile(
        requests=_table(requests, moments),
        original_times=_original_times(requests, moments),
        ignored_columns=tuple(name for name in columns if name not in expected),
    )


def _parse_header(path: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    missing = [name for name in _REQUIRED_COLUMNS if name not in names]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if missing:
        raise _invalid_file(path, [(1, f"there is no column {', '.join(missing)}")])
    if duplicates:
        raise _invalid_file(path, [(1, f"column {', '.join(duplicates)} is there more than once")])
    return names


def _parse_rows(reader: Iterator[list[str]], columns: list[str]) -> tuple[list[_Request], list[tuple[int, str]]]:
    requests: list[_Request] = []
    errors: list[tuple[int, str]] = []
    line = 2
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            # After invalid quoting the remaining rows cannot be separated.
            return requests, [*errors, (line, f"this is no CSV: {error}")]
        if cells is None:
            return requests, errors
        try:
            if cells:
                requests.append(_parse_request(line, columns, cells))
        except ValueError as error:
            errors.append((line, str(error)))
        line = reader.line_num + 1  # type: ignore[attr-defined]


def _parse_request(line: int, columns: list[str], cells: list[str]) -> _Request:
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} values for {len(columns)} columns")
    row = dict(zip(columns, cells, strict=True))
    op = row.get("op", "").strip() or "rename"
    if op not in _OPERATIONS:
        raise ValueError(f"op {op!r} is none of {', '.join(_OPERATIONS)}")
    if not row["old_id"]:
        raise ValueError("old_id is empty")
    if (op in RENAME_OPERATIONS) != bool(row["new_id"]):
        raise ValueError("new_id is empty" if op in RENAME_OPERATIONS else f"{op} takes no new_id")
    return _Request(
        line=line,
        at_seconds=_parse_seconds(row["ts"].strip()),
        ts=row["ts"].strip(),
        org_id=row.get("org_id", ""),
        commit=row.get("commit", "").strip(),
        seq=_parse_seq(row["seq"].strip()) if "seq" in row else line,
        op=op,
        old_id=row["old_id"],
        new_id=row["new_id"] or None,
        fields=_parse_fields(op, row.get("fields", "").strip()),
    )


def _parse_seconds(text: str) -> Decimal:
    """Parses a time to seconds since 1970; a time without an offset is UTC."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"ts {text!r} is neither a number of seconds nor ISO 8601") from None
        elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return Decimal(elapsed.days * 86_400 + elapsed.seconds) + Decimal(elapsed.microseconds) / 1_000_000
    if not number.is_finite():
        raise ValueError(f"ts {text!r} is no time")
    return number


def _parse_seq(text: str) -> int | None:
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"seq {text!r} is no whole number") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"seq {text!r} does not fit 64 bits")
    return number


def _parse_fields(op: str, text: str) -> Mapping[str, str | None] | None:
    if op != UPDATE:
        if text:
            raise ValueError(f"{op} takes no fields")
        return None
    try:
        fields = json.loads(text or "null")
    except ValueError as error:
        raise ValueError(f"fields is no JSON: {error}") from None
    if not isinstance(fields, dict) or not fields:
        raise ValueError('an update sets fields, such as {"stage": "won"}')
    if not all(value is None or isinstance(value, str) for value in fields.values()):
        raise ValueError("a value of fields is neither text nor null")
    return fields


def _find_split_commits(requests: list[_Request]) -> list[tuple[int, str]]:
    """Returns an error for each row whose time differs from its commit's other rows."""
    first: dict[tuple[str, str], _Request] = {}
    errors = []
    for request in requests:
        first_request = first.setdefault((request.org_id, request.commit), request)
        if request.commit and first_request.at_seconds != request.at_seconds:
            errors.append(
                (
                    request.line,
                    f"commit {request.commit} has another ts on line {first_request.line}: {first_request.ts}",
                )
            )
    return errors


def _moment_ordinals(requests: list[_Request]) -> dict[tuple[Decimal, str, str], int]:
    """Returns the ordinal of each moment: by time, then smallest sequence, then order in the file."""
    first: dict[tuple[Decimal, str, str], tuple[bool, int, int]] = {}
    for request in requests:
        key, order = _moment(request), (request.seq is not None, request.seq or 0, request.line)
        first[key] = min(first.get(key, order), order)
    return {key: number for number, key in enumerate(sorted(first, key=lambda key: (key[0], first[key])))}


def _moment(request: _Request) -> tuple[Decimal, str, str]:
    return request.at_seconds, request.org_id, request.commit


def _original_times(requests: list[_Request], moments: Mapping[tuple[Decimal, str, str], int]) -> tuple[str, ...]:
    texts = dict.fromkeys(range(len(moments)), "")
    for request in reversed(requests):
        texts[moments[_moment(request)]] = request.ts
    return tuple(texts.values())


def _table(requests: list[_Request], moments: Mapping[tuple[Decimal, str, str], int]) -> pa.Table:
    return pa.table(
        {
            "org_id": [request.org_id for request in requests],
            "op": [request.op for request in requests],
            "id": [request.old_id for request in requests],
            "new_id": [request.new_id for request in requests],
            "fields": [None if request.fields is None else list(request.fields.items()) for request in requests],
            "seq": [request.seq for request in requests],
            "time": [moments[_moment(request)] for request in requests],
        },
        schema=_ARROW_SCHEMA,
    )


def _ordinal(moment: datetime) -> int:
    elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def _invalid_file(path: Path, errors: list[tuple[int, str]]) -> ConfigError:
    details = "; ".join(f"line {line}: {problem}" for line, problem in errors[:_MAX_REPORTED_ERRORS])
    more = f"; and {len(errors) - _MAX_REPORTED_ERRORS} more" if len(errors) > _MAX_REPORTED_ERRORS else ""
    return ConfigError("MUTATION_FILE_INVALID", f"{path}: {details}{more}.", hint=_HINT)


# Resolution of small files.

#: Beyond this number of requests Spark is faster than its start takes.
MAX_REQUESTS: Final = 100_000
_ARRIVAL, _DEPARTURE, _UPDATED = 0, 1, 2
Key = tuple[str, str, datetime | None]
#: Time, sequence, value and field of an update; a missing sequence or value sorts first.
_Update = tuple[datetime, tuple[bool, int], tuple[bool, str], str]


@dataclass(slots=True, kw_only=True)
class _Entry:
    """An arrival, departure or update of an id; its period is from `since` to `until`, both departures."""

    org: str
    id: str
    deleted: bool
    time: datetime
    kind: int
    op: str
    seq: int | None = None
    fields: Mapping[str, str | None] = field(default_factory=dict)
    origin: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Destination:
    """The end of a chain of moves, or of its first move; the next one leaves `final_id` at `next_time`."""

    final_id: str
    deleted: bool
    next_time: datetime | None
    fields: Mapping[str, str | None]
    hops: int


@dataclass(frozen=True, slots=True)
class _Trace:
    """The timeline, the effective updates by end of their period with its start, and the destination of every move."""

    timeline: list[_Entry]
    updates: Mapping[Key, tuple[datetime | None, list[_Update]]]
    destinations: Mapping[Key, _Destination]


def resolve_small_entities(requests: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields the entities of requests with their components, by organisation, origin and time."""
    rows = requests.to_pylist()
    trace = _trace(rows)
    named: dict[tuple[str, str, datetime | None, datetime | None], list[datetime | None]] = {}
    for entry in trace.timeline:
        if entry.deleted:
            continue
        first = named.setdefault((entry.org, entry.id, entry.since, entry.until), [None, None])
        at = 1 if entry.kind == _ARRIVAL and entry.op != "merge" else 0
        first[at] = min(first[at] or entry.time, entry.time)
    components = _components(rows)
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


def resolve_small_intervals(requests: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields the intervals of requests, by organisation, id and time. Intervals may be empty."""
    trace = _trace(requests.to_pylist())
    periods: list[tuple[Key, datetime | None, list[_Update], _Destination]] = []
    for entry in trace.timeline:
        if entry.kind == _DEPARTURE and not entry.deleted:
            key: Key = (entry.org, entry.id, entry.time)
            _, updates = trace.updates.get(key, (None, []))
            periods.append((key, entry.since, updates, trace.destinations[key]))
    for period, (since, updates) in trace.updates.items():
        if period[2] is None:
            periods.append((period, since, updates, _Destination(period[1], False, None, {}, 0)))
    intervals = [interval for period in periods for interval in _split(*period)]
    yield from sorted(intervals, key=lambda row: _order((row["org_id"], row["id"], row["valid_from"])))


def _order(key: Key) -> tuple[str, str, bool, datetime]:
    org, name, time = key
    return org, name, time is not None, time or datetime.min.replace(tzinfo=UTC)


def _split(key: Key, since: datetime | None, updates: list[_Update], end: _Destination) -> Iterator[dict[str, Any]]:
    """Splits a period at the last update of each field. A part that changes nothing, or without time, is omitted."""
    org, name, until = key
    times = sorted({update[0] for update in updates})
    for valid_from, valid_to in zip([since, *times], [*times, until], strict=True):
        if valid_from == valid_to or (valid_to is None and until is None):
            continue
        yield {
            "org_id": org,
            "id": name,
            "valid_from": valid_from,
            "valid_to": valid_to,
            "final_id": end.final_id,
            "deleted": end.deleted,
            "fields": {**_fields_after(updates, valid_from), **end.fields},
            "hops": end.hops,
        }


def _fields_after(updates: Iterable[_Update], time: datetime | None) -> dict[str, str | None]:
    return {name: value if is_set else None for at, _, (is_set, value), name in updates if time is None or at > time}


def _trace(rows: list[dict[str, Any]]) -> _Trace:
    timeline = _timeline(_effective_requests(rows))
    updates = _last_updates(timeline)
    return _Trace(timeline, updates, _destinations(timeline, updates))


def _effective_requests(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields all updates, and the last of several moves of one id at one time, without moves to the same id."""
    moves: dict[Key, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for row in rows:
        if row["op"] == UPDATE:
            if row["fields"]:
                yield row
            continue
        target = row["new_id"] if row["op"] in RENAME_OPERATIONS else row["id"]
        rank = (row["seq"] is not None, row["seq"] or 0, row["op"], target)
        key = (row["org_id"], row["id"], row["time"])
        if key not in moves or moves[key][0] < rank:
            moves[key] = rank, row | {"target": target}
    for _, row in moves.values():
        if row["op"] not in RENAME_OPERATIONS or row["target"] != row["id"]:
            yield row


def _timeline(requests: Iterable[dict[str, Any]]) -> list[_Entry]:
    places: dict[tuple[str, str, bool], list[_Entry]] = defaultdict(list)

    def add(row: dict[str, Any], name: str, deleted: bool, kind: int, **more: Any) -> None:
        entry = _Entry(
            org=row["org_id"],
            id=name,
            deleted=deleted,
            time=row["time"],
            kind=kind,
            op=row["op"],
            seq=row["seq"],
            **more,
        )
        places[entry.org, name, deleted].append(entry)

    for row in requests:
        if row["op"] == UPDATE:
            add(row, row["id"], False, _UPDATED, fields=dict(row["fields"]))
        else:
            add(row, row["id"], row["op"] == UNDELETE, _DEPARTURE)
            add(row, row["target"], row["op"] == DELETE, _ARRIVAL, origin=row["id"])
    for entries in places.values():
        entries.sort(key=lambda entry: (entry.time, -entry.kind))
        departure: datetime | None = None
        for entry in entries:
            entry.since = departure
            departure = entry.time if entry.kind == _DEPARTURE else departure
        departure = None
        for entry in reversed(entries):
            departure = entry.time if entry.kind == _DEPARTURE else departure
            entry.until = departure
    return [entry for entries in places.values() for entry in entries]


def _last_updates(timeline: Iterable[_Entry]) -> dict[Key, tuple[datetime | None, list[_Update]]]:
    """Returns the last update of each field, by organisation, id and end of the period."""
    last: dict[Key, dict[str, _Update]] = defaultdict(dict)
    since: dict[Key, datetime | None] = {}
    for entry in timeline:
        for name, value in entry.fields.items() if entry.kind == _UPDATED else ():
            key = (entry.org, entry.id, entry.until)
            update = (entry.time, (entry.seq is not None, entry.seq or 0), (value is not None, value or ""), name)
            last[key][name] = max(last[key].get(name, update), update)
            since[key] = entry.since
    return {key: (since[key], list(fields.values())) for key, fields in last.items()}


def _destinations(
    timeline: Iterable[_Entry], updates: Mapping[Key, tuple[datetime | None, list[_Update]]]
) -> dict[Key, _Destination]:
    """Follows every move to the end of its chain, by organisation, id and time of the move. Later moves come first."""
    destinations: dict[Key, _Destination] = {}
    arrivals = [entry for entry in timeline if entry.kind == _ARRIVAL]
    for entry in sorted(arrivals, key=lambda entry: entry.time, reverse=True):
        _, later = (None, []) if entry.deleted else updates.get((entry.org, entry.id, entry.until), (None, []))
        fields = _fields_after(later, entry.time)
        end = _Destination(entry.id, entry.deleted, entry.until, fields, 1)
        if entry.until is not None:
            onto = destinations[entry.org, entry.id, entry.until]
            end = _Destination(onto.final_id, onto.deleted, None, {**fields, **onto.fields}, 1 + onto.hops)
        destinations[entry.org, entry.origin, entry.time] = end
    return destinations


def _components(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], tuple[str, int]]:
    """Returns the smallest id and the number of ids of the component of each id that a rename or merge connects."""
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for row in rows:
        if row["op"] in RENAME_OPERATIONS and row["id"] != row["new_id"]:
            first, second = sorted((root((row["org_id"], row["id"])), root((row["org_id"], row["new_id"]))))
            parents[second] = first
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for node in parents:
        sizes[root(node)] += 1
    return {node: (root(node)[1], sizes[root(node)]) for node in parents}
