"""Resolves what a reprocess reads again (batches, objects, a range of event time, or everything) to `seq`s and objects.

A selection becomes a few ranges of `seq`, used as conditions by Spark and Arrow. Only complete batches are selected;
later ones belong to the stream. Reads the ledger, prepared batches, the file event log and, for event times, two
columns of the tables. Writes nothing.
"""

from __future__ import annotations

import bisect
import datetime as dt
import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.engine.batch_history import BatchHistory, BatchSummary
from deltaworks.errors import ConfigError, ContractError
from deltaworks.sources.objects.file_event_log import FileEventLog, event_time_us, filter_events
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import require_object_source
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True)
class SeqRanges:
    """Disjoint ascending ranges of `seq`, both ends inclusive."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_seqs(cls, seqs: Iterable[int], *, existing_seqs: Sequence[int] | None = None) -> SeqRanges:
        """Builds the fewest ranges that contain `seqs`.

        Args:
            existing_seqs: all seqs that rows can have, ascending. A range may then span numbers that no row has.
                Without it, ranges contain exactly `seqs`.
        """
        place = (lambda seq: seq) if existing_seqs is None else (lambda seq: bisect.bisect_left(existing_seqs, seq))
        ranges: list[tuple[int, int]] = []
        for seq in sorted(set(seqs)):
            if ranges and place(seq) == place(ranges[-1][1]) + 1:
                ranges[-1] = (ranges[-1][0], seq)
            else:
                ranges.append((seq, seq))
        return cls(tuple(ranges))

    @classmethod
    def merge(cls, pairs: Iterable[tuple[int, int]]) -> SeqRanges:
        """Builds the fewest ranges that cover these pairs, given in any order."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(pairs):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return cls(tuple(ranges))

    def clip(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of the ranges between two seqs, both inclusive."""
        at = max(0, bisect.bisect_right(self.ranges, (first, 1 << 63)) - 1)
        for low, high in self.ranges[at:]:
            if low > last:
                return
            if high >= first:
                yield max(low, first), min(high, last)

    def __contains__(self, seq: int) -> bool:
        at = bisect.bisect_right(self.ranges, (seq, 1 << 63)) - 1
        return at >= 0 and seq <= self.ranges[at][1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def first(self) -> int:
        """The lowest seq of all ranges."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The highest seq of all ranges."""
        return self.ranges[-1][1]

    def sql(self, column: str = "_seq") -> str:
        """Returns the condition in SQL; `false` without ranges."""
        parts = [f"`{column}` BETWEEN {first} AND {last}" for first, last in self.ranges]
        return f"({' OR '.join(parts)})" if parts else "false"

    def expression(self, column: str = "_seq") -> Any:
        """Returns the condition as an Arrow dataset filter."""
        field = ds.field(column)
        parts = [(field >= first) & (field <= last) for first, last in self.ranges]
        return reduce(or_, parts) if parts else ds.scalar(False)


READ_THREADS = 8
#: Beyond this number of ranges, planning takes Spark longer than rewriting the rows.
MAX_RANGES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selection to read again; exactly one field is set.

    - `batches`: first and last batch.
    - `files`: keys or glob patterns.
    - `offsets`: records of a stream, such as `topic/0/100-200`.
    - `events`, `arrived`: start (inclusive) and end (exclusive) in ISO 8601. Selects every object, or every batch of a
      stream, with an event of that time or that arrived in that time; selected ones are read completely.
    """

    batches: tuple[int, int] | None = None
    files: tuple[str, ...] = ()
    events: tuple[str, str] | None = None
    from_start: bool = False
    offsets: tuple[str, ...] = ()
    arrived: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        chosen = (self.batches, self.files, self.events, self.from_start, self.offsets, self.arrived)
        if sum(map(bool, chosen)) != 1:
            raise ambiguous_selection_error()

    def as_record(self) -> dict[str, Any]:
        """Returns the selection as plain data."""
        return asdict(self)


def ambiguous_selection_error() -> ConfigError:
    """Builds the error for a selection with zero or several fields."""
    return ConfigError("REPROCESS_SELECTION_INVALID", "Exactly one selection is required.")


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object to read again, with the batch id of its rows and its arrival time."""

    seq: int
    key: str
    etag: str
    size: int
    batch_id: int
    ingested_at_us: int
    version_id: str | None = None
    arrived_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class ResolvedObjects:
    """The selected objects in order, their ranges, and the newest batch that was complete at the time of resolution."""

    objects: tuple[SourceObject, ...]
    ranges: SeqRanges
    through_batch: int

    @property
    def bytes(self) -> int:
        """Total size of the objects in the landing bucket."""
        return sum(source.size for source in self.objects)


class ObjectResolver:
    """Resolves selections of one pipeline that reads objects. Not thread-safe."""

    def __init__(self, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._lake = lake
        self._objects = objects
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec
        self._source = require_object_source(
            spec.source, pipeline=spec.pipeline, unsupported="there is nothing to read again"
        )
        self._log = FileEventLog(lake, self._source.relay)

    def resolve(self, selection: Selection) -> ResolvedObjects:
        """Resolves the selection among the batches that are complete now.

        Raises:
            ConfigError: REPROCESS_EMPTY, REPROCESS_TOO_FRAGMENTED, or REPROCESS_SELECTION_INVALID for a malformed time.
            ContractError: LEDGER_WITHOUT_TIME.
        """
        batches = self._completed_batches()
        events = self._file_events(batches)
        chosen = self._selected_seqs(selection, events, batches)
        seqs = events.column("seq").to_pylist()
        # If the pipeline always read a single location, a range between two of its objects contains no other rows.
        ranges = SeqRanges.from_seqs(chosen, existing_seqs=seqs if self._has_single_source() else None)
        if not chosen:
            raise empty_selection_error(self._spec, "nothing that is complete matches")
        reject_fragmented(ranges)
        return ResolvedObjects(tuple(self._source_objects(events, chosen, batches)), ranges, batches[-1].batch_id)

    def resolve_again(self, ranges: SeqRanges, *, through_batch: int) -> ResolvedObjects:
        """Resolves planned ranges again up to the same batch. The result is the same, since the log is append-only."""
        batches = self._completed_batches(through_batch)
        events = self._file_events(batches)
        chosen = {seq for seq in events.column("seq").to_pylist() if seq in ranges}
        return ResolvedObjects(tuple(self._source_objects(events, chosen, batches)), ranges, through_batch)

    def _completed_batches(self, through_batch: int | None = None) -> list[BatchSummary]:
        batches = BatchHistory(self._lake, self._objects, self._spec).completed(last=through_batch)
        if not batches:
            raise empty_selection_error(self._spec, "no batch is complete yet")
        return batches

    def _file_events(self, batches: list[BatchSummary]) -> pa.Table:
        """Returns the pipeline's file events of complete batches."""
        start, end = batches[0].start_offset, batches[-1].end_offset
        after, up_to = (start or {}).get("seq", 0), (end or {}).get("seq", 0)
        columns = ("seq", "bucket", "key", "etag", "size", "event_time", "version_id")
        events = self._log.read(after, up_to, columns=columns)
        return filter_events(events, bucket=self._source.bucket, prefix=self._source.prefix, glob=self._source.glob)

    def _has_single_source(self) -> bool:
        now = self._source
        return self._home.specs.source_locations() <= {(now.relay, now.bucket, now.prefix)}

    def _selected_seqs(self, selection: Selection, events: pa.Table, batches: list[BatchSummary]) -> set[int]:
        seqs = events.column("seq").to_pylist()
        if selection.from_start:
            return set(seqs)
        if selection.batches is not None:
            first, last = selection.batches
            spans = [
                ((batch.start_offset or {}).get("seq", 0), (batch.end_offset or {}).get("seq", 0))
                for batch in batches
                if first <= batch.batch_id <= last
            ]
            return {seq for seq in seqs if any(start < seq <= end for start, end in spans)}
        if selection.files:
            keys = events.column("key").to_pylist()
            return {seq for seq, key in zip(seqs, keys, strict=True) if _matches_any(key, selection.files)}
        if selection.offsets:
            raise offsets_unsupported_error(self._spec)
        if selection.arrived is not None:
            return _seqs_created_within(selection.arrived, events)
        if selection.events is None:
            raise ambiguous_selection_error()
        return self._seqs_with_events(selection.events, events) & set(seqs)

    def _seqs_with_events(self, between: tuple[str, str], events: pa.Table) -> set[int]:
        """Returns the `seq`s of objects that have an event of that time in a table.

        Also includes objects created in that time that have a quarantined row, since such rows may have no event time.
        """
        start, end = (parse_instant(text) for text in between)
        seqs: set[int] = set()
        for table in self._spec.event_tables:
            dates = (ds.field("event_date") >= start.date()) & (ds.field("event_date") <= end.date())
            times = (ds.field("event_time") >= pa.scalar(start)) & (ds.field("event_time") < pa.scalar(end))
            rows = self._lake.rows(
                paths.table(self._spec.pipeline, table.name), columns=["_seq"], filters=dates & times
            )
            seqs |= set(rows.column("_seq").to_pylist()) if rows is not None else set()
        quarantined = self._lake.rows(paths.table(self._spec.pipeline, "quarantine"), columns=["_seq"])
        if quarantined is not None:
            seqs |= _seqs_created_within(between, events) & set(quarantined.column("_seq").to_pylist())
        return seqs

    def _source_objects(self, events: pa.Table, seqs: set[int], batches: list[BatchSummary]) -> Iterator[SourceObject]:
        rows = [row for row in events.to_pylist() if row["seq"] in seqs]
        spans = [(batch, (batch.end_offset or {}).get("seq", 0)) for batch in batches]
        at, of_batch = 0, {}
        for row in rows:
            while spans[at][1] < row["seq"]:
                at += 1
            of_batch[row["seq"]] = spans[at][0]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            used = list({batch.batch_id: batch for batch in of_batch.values()}.values())
            stamp = partial(ingested_at_us, self._home)
            stamps = dict(zip((batch.batch_id for batch in used), pool.map(stamp, used), strict=True))
        for row in rows:
            batch = of_batch[row["seq"]]
            yield SourceObject(
                row["seq"],
                row["key"],
                row["etag"],
                row["size"] or 0,
                batch.batch_id,
                stamps[batch.batch_id],
                row["version_id"],
                event_time_us(row["event_time"]),
            )


def ingested_at_us(home: PipelineHome, batch: BatchSummary) -> int:
    """Returns the ingest time of a batch's rows; the ledger's milliseconds if the prepared batch no longer exists.

    Raises:
        ContractError: LEDGER_WITHOUT_TIME.
    """
    prepared = home.prepared.read(batch.generation, batch.batch_id)
    if prepared is not None:
        return prepared.ingested_at_us
    if batch.prepared_at is None:
        raise ContractError(
            "LEDGER_WITHOUT_TIME",
            f"The ledger of {home.pipeline!r} has no preparation time for batch {batch.batch_id}.",
        )
    return int(batch.prepared_at.timestamp() * 1_000_000)


def empty_selection_error(spec: PipelineSpec, why: str) -> ConfigError:
    """Builds the error for a selection that matches nothing."""
    return ConfigError(
        "REPROCESS_EMPTY",
        f"There is nothing of {spec.pipeline!r} to read again: {why}.",
        hint=f"`deltaworks batches {spec.pipeline}` lists the batches.",
    )


def reject_fragmented(ranges: SeqRanges) -> None:
    """Rejects more ranges than a condition supports.

    Raises:
        ConfigError: REPROCESS_TOO_FRAGMENTED.
    """
    if len(ranges) > MAX_RANGES:
        raise ConfigError(
            "REPROCESS_TOO_FRAGMENTED", f"The selection falls into {len(ranges)} ranges of seq, more than {MAX_RANGES}."
        )


def offsets_unsupported_error(spec: PipelineSpec) -> ConfigError:
    """Builds the error for selecting offsets of a source that has no offsets."""
    return ConfigError(
        "REPROCESS_SELECTION_INVALID",
        f"{spec.pipeline!r} reads {spec.source.kind}, which has no offsets of records.",
        hint="Select its objects: --files, --batches, --events or --arrived.",
    )


def _seqs_created_within(between: tuple[str, str], events: pa.Table) -> set[int]:
    """Returns the objects created within a time range."""
    start, end = (parse_instant(text) for text in between)
    times = events.column("event_time")
    within = pc.and_(pc.greater_equal(times, pa.scalar(start)), pc.less(times, pa.scalar(end)))
    return set(events.filter(within).column("seq").to_pylist())


def _matches_any(key: str, patterns: tuple[str, ...]) -> bool:
    return any(key == pattern or fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def parse_instant(text: str) -> dt.datetime:
    """Parses an instant, in UTC if it has no zone.

    Raises:
        ConfigError: REPROCESS_SELECTION_INVALID.
    """
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            "REPROCESS_SELECTION_INVALID", f"{text!r} is no time in ISO 8601.", hint="Write it as 2026-01-31T00:00:00Z."
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=dt.UTC)
