"""What a reprocess reads again: batches, objects, a time of events or everything, resolved to `seq`s and their objects.

Only complete batches are selected: what comes after them is the stream's. Resolving reads the ledger, prepared batches,
the file event log and, for a time of events, two columns of the tables. Nothing is written.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.engine.history import BatchHistory, BatchSummary
from deltaworks.errors import ConfigError
from deltaworks.rework.reprocess.seq_ranges import MOST_RANGES, SeqRanges
from deltaworks.sources.objects.log import FileEventLog, matching
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.declared import objects_of
from deltaworks.tables.lake import Lake

_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to read again; exactly one of the four.

    `batches` is the first and the last batch; `files` are keys or glob patterns of keys; `events` are the first
    instant and the first one after, in ISO 8601: every object that holds such an event is read whole.
    """

    batches: tuple[int, int] | None = None
    files: tuple[str, ...] = ()
    events: tuple[str, str] | None = None
    from_start: bool = False

    def __post_init__(self) -> None:
        given = [self.batches is not None, bool(self.files), self.events is not None, self.from_start]
        if sum(given) != 1:
            raise ConfigError(
                "REPROCESS_SELECTION",
                "Say what to read again in exactly one way.",
                hint="Give --batches, --files, --events or --from-start.",
            )

    def as_record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One object to read again, with the batch its rows were and stay stamped with."""

    seq: int
    key: str
    etag: str
    size: int
    batch_id: int
    ingested_at_us: int
    version_id: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A selection's objects in order, their ranges, and the newest complete batch when it was resolved."""

    objects: tuple[SourceObject, ...]
    ranges: SeqRanges
    up_to_batch: int

    @property
    def bytes(self) -> int:
        """Bytes of all objects, as they lie in the landing bucket."""
        return sum(each.size for each in self.objects)


class Resolver:
    """Resolves selections of one pipeline. Used by one thread."""

    def __init__(self, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._lake = lake
        self._objects = objects
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec
        self._source = objects_of(spec.source, pipeline=spec.pipeline, refused="there is nothing to read again")
        self._log = FileEventLog(lake, self._source.relay)

    def resolve(self, selection: Selection) -> Resolved:
        """The selection's objects among those of the batches that are complete now.

        Raises:
            ConfigError: REPROCESS_EMPTY, REPROCESS_SCATTERED, or REPROCESS_SELECTION for a time that is none.
        """
        batches = self._complete()
        events = self._events(batches)
        wanted = self._wanted(selection, events, batches)
        seqs = events.column("seq").to_pylist()
        # Where the pipeline has always read one place, nothing else can have rows between two of its objects.
        ranges = SeqRanges.of(wanted, among=seqs if self._one_source() else None)
        if not wanted:
            raise self._empty("nothing that is complete matches")
        if len(ranges) > MOST_RANGES:
            raise ConfigError(
                "REPROCESS_SCATTERED",
                f"The selection falls into {len(ranges)} ranges of seq, more than {MOST_RANGES}.",
                hint="Select by batches or from the start, or reprocess it in parts.",
            )
        return Resolved(tuple(self._objects_of(events, wanted, batches)), ranges, batches[-1].batch_id)

    def within(self, ranges: SeqRanges, *, up_to_batch: int) -> Resolved:
        """What was resolved once, again: a log only grows, and it is read up to the same batch."""
        batches = self._complete(up_to_batch)
        events = self._events(batches)
        wanted = {seq for seq in events.column("seq").to_pylist() if seq in ranges}
        return Resolved(tuple(self._objects_of(events, wanted, batches)), ranges, up_to_batch)

    def _complete(self, up_to_batch: int | None = None) -> list[BatchSummary]:
        batches = BatchHistory(self._lake, self._objects, self._spec).complete(last=up_to_batch)
        if not batches:
            raise self._empty("no batch is complete yet")
        return batches

    def _empty(self, why: str) -> ConfigError:
        return ConfigError(
            "REPROCESS_EMPTY",
            f"There is nothing of {self._spec.pipeline!r} to read again: {why}.",
            hint=f"`deltaworks batches {self._spec.pipeline}` shows what there is.",
        )

    def _events(self, batches: list[BatchSummary]) -> pa.Table:
        """The file events of the pipeline's place that lie in complete batches."""
        start, end = batches[0].start_offset, batches[-1].end_offset
        after, up_to = (start or {}).get("seq", 0), (end or {}).get("seq", 0)
        columns = ("seq", "bucket", "key", "etag", "size", "event_time", "version_id")
        found = self._log.read(after, up_to, columns=columns)
        return matching(found, bucket=self._source.bucket, prefix=self._source.prefix, glob=self._source.glob)

    def _one_source(self) -> bool:
        now = self._source
        return self._home.specs.places() <= {(now.relay, now.bucket, now.prefix)}

    def _wanted(self, selection: Selection, events: pa.Table, batches: list[BatchSummary]) -> set[int]:
        seqs = events.column("seq").to_pylist()
        if selection.from_start:
            return set(seqs)
        if selection.batches is not None:
            first, last = selection.batches
            chosen = [batch for batch in batches if first <= batch.batch_id <= last]
            spans = [((b.start_offset or {}).get("seq", 0), (b.end_offset or {}).get("seq", 0)) for b in chosen]
            return {seq for seq in seqs if any(start < seq <= end for start, end in spans)}
        if selection.files:
            keys = events.column("key").to_pylist()
            return {seq for seq, key in zip(seqs, keys, strict=True) if _matches(key, selection.files)}
        assert selection.events is not None
        return self._with_events(selection.events, events) & set(seqs)

    def _with_events(self, between: tuple[str, str], events: pa.Table) -> set[int]:
        """Objects with an event of that time in a table; and, since a row in quarantine may have no time, objects
        with such a row that the store made in that time."""
        start, end = (_instant(text) for text in between)
        found: set[int] = set()
        for table in self._spec.event_tables:
            dates = (ds.field("event_date") >= start.date()) & (ds.field("event_date") <= end.date())
            times = (ds.field("event_time") >= pa.scalar(start)) & (ds.field("event_time") < pa.scalar(end))
            rows = self._lake.rows(
                paths.table(self._spec.pipeline, table.name), columns=["_seq"], filters=dates & times
            )
            found |= set(rows.column("_seq").to_pylist()) if rows is not None else set()
        quarantined = self._lake.rows(paths.table(self._spec.pipeline, "quarantine"), columns=["_seq"])
        if quarantined is not None:
            made = events.column("event_time")
            within = pc.and_(pc.greater_equal(made, pa.scalar(start)), pc.less(made, pa.scalar(end)))
            found |= set(events.filter(within).column("seq").to_pylist()) & set(quarantined.column("_seq").to_pylist())
        return found

    def _objects_of(self, events: pa.Table, wanted: set[int], batches: list[BatchSummary]) -> Iterator[SourceObject]:
        chosen = [row for row in events.to_pylist() if row["seq"] in wanted]
        spans = [(batch, (batch.end_offset or {}).get("seq", 0)) for batch in batches]
        at, of_batch = 0, {}
        for row in chosen:
            while spans[at][1] < row["seq"]:
                at += 1
            of_batch[row["seq"]] = spans[at][0]
        with ThreadPoolExecutor(_READERS) as pool:
            used = list({batch.batch_id: batch for batch in of_batch.values()}.values())
            stamps = dict(zip((batch.batch_id for batch in used), pool.map(self._ingested_at_us, used), strict=True))
        for row in chosen:
            batch = of_batch[row["seq"]]
            yield SourceObject(
                row["seq"],
                row["key"],
                row["etag"],
                row["size"] or 0,
                batch.batch_id,
                stamps[batch.batch_id],
                row["version_id"],
            )

    def _ingested_at_us(self, batch: BatchSummary) -> int:
        """The stamp of the batch's rows; the ledger's milliseconds where the prepared batch is gone."""
        prepared = self._home.prepared.read(batch.generation, batch.batch_id)
        if prepared is not None:
            return prepared.ingested_at_us
        assert batch.prepared_at is not None
        return int(batch.prepared_at.timestamp() * 1_000_000)


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(key == pattern or fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _instant(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            "REPROCESS_SELECTION", f"{text!r} is no time in ISO 8601.", hint="Write it as 2026-01-31T00:00:00Z."
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
