"""From payloads to rows: unwrap each value, read name, time and id, route it to its tables, convert its columns.

An event lands in every table whose condition matches, or in quarantine with its reasons; never in some tables and
in quarantine too. So the columns of all tables of a chunk are converted first, and an event that fits not every
one of its tables is then taken out of all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.specs.pipeline import ColumnSpec, PipelineSpec, TableSpec
from deltaworks.specs.types import parse_type
from deltaworks.streaming.columns import Misfit, column, instant_us
from deltaworks.streaming.framing import Malformed, values
from deltaworks.streaming.reasons import QUARANTINE_SCHEMA, Reason, ReasonCode
from deltaworks.tables.arrow_types import arrow_schema

_ABSENT: dict[str, Any] = {}
_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class Payload:
    """One object's or message's bytes: `seq` orders payloads, `data` is None where they could not be had."""

    seq: int
    key: str
    data: bytes | None
    problem: Reason | None = None


@dataclass(frozen=True, slots=True)
class BatchStamp:
    """What every row of a batch is stamped with."""

    batch_id: int
    ingested_at_us: int
    fingerprint: str


@dataclass(slots=True)
class Chunk:
    """Events on their way: parallel lists, one entry an event."""

    events: list[dict[str, Any]] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rows_by_table: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """One row for quarantine."""

    seq: int
    position: int
    key: str
    raw: bytes
    event_name: str | None
    reasons: tuple[Reason, ...]


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """What lies at a path of field names, or None."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


class EventReader:
    """Reads single events as a pipeline declares them. Stateless once built; picklable."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._unwrap = tuple(spec.unwrap.path.split(".")) if spec.unwrap else ()
        name = spec.event.name
        self._constant_name = name.constant
        self._name_path_text = name.path or ""
        self._name_path = tuple(name.path.split(".")) if name.path else ()
        self._time_path_text = spec.event.time.path
        self._time_path = tuple(spec.event.time.path.split("."))
        self._unit = spec.event.time.unit
        self._id_paths = [(text, tuple(text.split("."))) for text in spec.event.id]

    def event(self, value: Any) -> dict[str, Any]:
        """The event inside a value.

        Raises:
            Misfit: there is none; a `Reason`'s code and detail.
        """
        if isinstance(value, Malformed):
            raise Misfit(ReasonCode.MALFORMED, value.detail)
        if self._unwrap:
            value = self._unwrapped(value)
        if not isinstance(value, dict):
            raise Misfit(ReasonCode.NOT_AN_OBJECT, f"found a {type(value).__name__}, not an object")
        return value

    def _unwrapped(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit(ReasonCode.NOT_AN_OBJECT, f"found a {type(value).__name__}, not a wrapper object")
        inner = value_at(value, self._unwrap)
        if inner is None:
            raise Misfit(ReasonCode.MISSING_REQUIRED, f"the wrapper has no {'.'.join(self._unwrap)}")
        if isinstance(inner, str):
            try:
                return orjson.loads(inner)
            except orjson.JSONDecodeError as error:
                raise Misfit(ReasonCode.MALFORMED, f"{'.'.join(self._unwrap)} holds no JSON: {error}") from None
        return inner

    def name(self, event: dict[str, Any]) -> str:
        """The event's name."""
        if self._constant_name is not None:
            return self._constant_name
        name = value_at(event, self._name_path)
        if not isinstance(name, str) or not name:
            raise Misfit(ReasonCode.UNKNOWN_EVENT, f"{self._name_path_text} holds no event name")
        return name

    def time_us(self, event: dict[str, Any]) -> int:
        """The event's time in microseconds since 1970."""
        value = value_at(event, self._time_path)
        if value is None:
            raise Misfit(ReasonCode.MISSING_REQUIRED, f"{self._time_path_text} is missing")
        return instant_us(value, self._unit)

    def id(self, event: dict[str, Any]) -> str | None:
        """The event's id; None where the pipeline declares none."""
        if not self._id_paths:
            return None
        parts = []
        for text, path in self._id_paths:
            value = value_at(event, path)
            if value is None or isinstance(value, dict | list):
                raise Misfit(ReasonCode.MISSING_REQUIRED, f"{text} is missing, which is (part of) the event's id")
            parts.append(value if isinstance(value, str) else orjson.dumps(value).decode())
        if len(parts) == 1:
            return parts[0]
        return hashlib.blake2b(_SEPARATOR.join(parts).encode(), digest_size=16).hexdigest()


class Router:
    """Which tables an event belongs to."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._catch_all = tuple(table.name for table in spec.tables if table.catch_all)
        self._conditional = [
            (table.name, [(tuple(path.split(".")), frozenset(wanted)) for path, wanted in table.when.items()])
            for table in spec.tables
            if not table.catch_all
        ]
        self._by_name_only = spec.event.name.path is not None and all(
            list(table.when) == [spec.event.name.path] for table in spec.tables if not table.catch_all
        )
        self._known: dict[str, tuple[str, ...] | None] = {}

    def tables(self, event: dict[str, Any], name: str) -> tuple[str, ...] | None:
        """The tables in order, or None for an event no table knows."""
        if not self._by_name_only:
            return self._match(event)
        if name not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[name] = self._match(event)
        return self._known[name]

    def _match(self, event: dict[str, Any]) -> tuple[str, ...] | None:
        matched = tuple(
            name for name, conditions in self._conditional if all(_holds(event, *each) for each in conditions)
        )
        if not matched and self._conditional:
            return None
        return self._catch_all + matched


def _holds(event: dict[str, Any], path: tuple[str, ...], wanted: frozenset[Any]) -> bool:
    value = value_at(event, path)
    return isinstance(value, str | int | float | bool) and value in wanted


class TableColumns:
    """Converts the events of one table to Arrow, column by column."""

    def __init__(self, table: TableSpec) -> None:
        self.schema = arrow_schema(table.column_types())
        self._columns = [(spec, tuple(spec.path.split(".")), parse_type(spec.type)) for spec in table.columns]

    def convert(self, chunk: Chunk, rows: list[int], stamp: BatchStamp) -> tuple[pa.Table, dict[int, list[Reason]]]:
        """The rows' table, and the reasons of those that do not fit, by event index."""
        misfits: dict[int, list[Reason]] = {}
        events = [chunk.events[row] for row in rows]
        arrays = self._envelope(chunk, rows, stamp)
        parents: dict[tuple[str, ...], list[dict[str, Any]]] = {(): events}
        for spec, path, kind in self._columns:
            holders = parents.get(path[:-1])
            if holders is None:
                holders = parents[path[:-1]] = [_holder(event, path[:-1]) for event in events]
            leaf = path[-1]
            found = [holder.get(leaf) for holder in holders]
            array, bad = column(found, kind, unit=spec.unit)
            self._note(spec, array, bad, rows, misfits)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self.schema), misfits

    @staticmethod
    def _note(
        spec: ColumnSpec, array: pa.Array, bad: dict[int, Misfit], rows: list[int], misfits: dict[int, list[Reason]]
    ) -> None:
        for index, misfit in bad.items():
            misfits.setdefault(rows[index], []).append(Reason(misfit.code, spec.path, misfit.detail))
        if spec.required and array.null_count:
            missing = Reason(ReasonCode.MISSING_REQUIRED, spec.path, f"column {spec.name} is required")
            for index in pc.indices_nonzero(pc.is_null(array)).to_pylist():
                if index not in bad:
                    misfits.setdefault(rows[index], []).append(missing)

    @staticmethod
    def _envelope(chunk: Chunk, rows: list[int], stamp: BatchStamp) -> list[pa.Array]:
        instant = pa.timestamp("us", tz="UTC")
        times = pa.array([chunk.times_us[row] for row in rows], pa.int64()).cast(instant)
        return [
            pa.array([chunk.ids[row] for row in rows], pa.string()),
            pa.array([chunk.names[row] for row in rows], pa.string()),
            times,
            times.cast(pa.date32()),
            pa.repeat(pa.scalar(stamp.ingested_at_us, pa.int64()), len(rows)).cast(instant),
            pa.repeat(pa.scalar(stamp.batch_id, pa.int64()), len(rows)),
            pa.array([chunk.seqs[row] for row in rows], pa.int64()),
            pa.array([chunk.positions[row] for row in rows], pa.int64()),
        ]


def _holder(event: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    found = value_at(event, path)
    return found if isinstance(found, dict) else _ABSENT


class Parser:
    """Turns payloads into Arrow tables by table name, quarantine among them."""

    def __init__(self, spec: PipelineSpec, *, chunk_events: int = 20_000) -> None:
        self._reader = EventReader(spec)
        self._router = Router(spec)
        self._columns = {table.name: TableColumns(table) for table in spec.tables}
        self._retain = spec.quarantine.retain_raw_bytes
        self._chunk_events = chunk_events

    def parse(self, payloads: Iterable[Payload], stamp: BatchStamp) -> Iterator[tuple[str, pa.Table]]:
        """Read payloads; yields `(table name, rows)` many times over, in chunks of bounded size."""
        chunk, rejected = Chunk(), list[Rejected]()
        keys: dict[int, str] = {}
        for payload in payloads:
            keys[payload.seq] = payload.key
            if payload.data is None:
                problem = payload.problem or Reason(ReasonCode.OBJECT_UNREADABLE, "", "no data")
                rejected.append(Rejected(payload.seq, 0, payload.key, b"", None, (problem,)))
                continue
            for position, (value, raw) in enumerate(values(payload.data)):
                self._take(chunk, rejected, payload, position, value, raw)
                if len(chunk.events) >= self._chunk_events:
                    yield from self._finish(chunk, rejected, keys, stamp)
                    chunk, rejected = Chunk(), []
        yield from self._finish(chunk, rejected, keys, stamp)

    def _take(
        self, chunk: Chunk, rejected: list[Rejected], payload: Payload, position: int, value: Any, raw: bytes
    ) -> None:
        reader, name, path = self._reader, None, ""
        try:
            event = reader.event(value)
            path = reader._name_path_text
            name = reader.name(event)
            tables = self._router.tables(event, name)
            if tables is None:
                raise Misfit(ReasonCode.UNKNOWN_EVENT, f"no table takes events called {name!r}")
            path = reader._time_path_text
            time_us = reader.time_us(event)
            path = ""
            event_id = reader.id(event)
        except Misfit as misfit:
            reason = Reason(misfit.code, path, misfit.detail)
            rejected.append(Rejected(payload.seq, position, payload.key, raw, name, (reason,)))
            return
        index = len(chunk.events)
        chunk.events.append(event)
        chunk.raws.append(raw)
        chunk.names.append(name)
        chunk.times_us.append(time_us)
        chunk.ids.append(event_id)
        chunk.seqs.append(payload.seq)
        chunk.positions.append(position)
        for table in tables:
            chunk.rows_by_table.setdefault(table, []).append(index)

    def _finish(
        self, chunk: Chunk, rejected: list[Rejected], keys: dict[int, str], stamp: BatchStamp
    ) -> Iterator[tuple[str, pa.Table]]:
        converted = {}
        misfits: dict[int, list[Reason]] = {}
        for name, rows in chunk.rows_by_table.items():
            converted[name], bad = self._columns[name].convert(chunk, rows, stamp)
            for index, reasons in bad.items():
                known = misfits.setdefault(index, [])
                known.extend(reason for reason in reasons if reason not in known)
        for index, reasons in sorted(misfits.items()):
            rejected.append(
                Rejected(
                    chunk.seqs[index],
                    chunk.positions[index],
                    keys[chunk.seqs[index]],
                    chunk.raws[index],
                    chunk.names[index],
                    tuple(reasons),
                )
            )
        for name, table in converted.items():
            rows = chunk.rows_by_table[name]
            if misfits and not misfits.keys().isdisjoint(rows):
                table = table.filter(pa.array([row not in misfits for row in rows]))
            if table.num_rows:
                yield name, table
        if rejected:
            yield "quarantine", quarantine_rows(rejected, stamp, retain_raw_bytes=self._retain)


def quarantine_rows(rejected: list[Rejected], stamp: BatchStamp, *, retain_raw_bytes: int) -> pa.Table:
    """Rejected rows in the quarantine table's schema."""
    instant = pa.scalar(stamp.ingested_at_us, pa.int64())
    times = pa.repeat(instant, len(rejected)).cast(pa.timestamp("us", tz="UTC"))
    reasons = [
        [{"code": str(reason.code), "path": reason.path, "detail": reason.detail} for reason in row.reasons]
        for row in rejected
    ]
    columns = [
        times.cast(pa.date32()),
        [row.event_name for row in rejected],
        reasons,
        [row.raw[:retain_raw_bytes].decode("utf-8", "backslashreplace") for row in rejected],
        [len(row.raw) for row in rejected],
        [row.key for row in rejected],
        [stamp.fingerprint] * len(rejected),
        times,
        [stamp.batch_id] * len(rejected),
        [row.seq for row in rejected],
        [row.position for row in rejected],
    ]
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, kind.type)
        for values, kind in zip(columns, QUARANTINE_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=QUARANTINE_SCHEMA)
