"""Resolves a selection of stream records to offset ranges, and decides where each range is read from again.

The ledger has the offsets of every batch, so records are identified by ranges and never listed. A selection by time
selects complete batches: the records of a batch arrived between two times in the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.home import PipelineHome
from deltaworks.engine.batch_history import BatchHistory, BatchSummary
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.reprocess.selection import (
    READ_THREADS,
    Selection,
    SeqRanges,
    empty_selection_error,
    ingested_at_us,
    parse_instant,
    reject_fragmented,
)
from deltaworks.sources.record_source import BatchOffsets, RecordRange, RetainedRange
from deltaworks.sources.registry import open_record_source
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Ranges by the place they are read from. Each record of the selection is in exactly one range."""

    source: tuple[RecordRange, ...] = ()
    archive: tuple[RecordRange, ...] = ()
    missing: tuple[RecordRange, ...] = ()

    @property
    def readable(self) -> tuple[RecordRange, ...]:
        """All ranges that can be read again."""
        return self.source + self.archive


def assign_provenance(
    ranges: Sequence[RecordRange], retained: Sequence[RetainedRange], *, archived: Set[int], countable: Set[int]
) -> Provenance:
    """Assigns each part of the ranges to the place it is read from.

    Args:
        retained: for each range, the part that the source retains.
        archived: batches in the archive. The archive holds all records of a batch or none.
        countable: batches whose number of records is recorded.
    """
    source: list[RecordRange] = []
    archive: list[RecordRange] = []
    missing: list[RecordRange] = []

    def put(target: list[RecordRange], part: RecordRange | None) -> None:
        if part is not None:
            target.append(part)

    for one, has in zip(ranges, retained, strict=True):
        possible_from = min(has.possible_from, has.certain_from) if one.batch_id in countable else has.certain_from
        if one.batch_id in archived:
            put(archive, one.clip(one.first, has.certain_from - 1))
            put(source, one.clip(has.certain_from, one.last))
        else:
            put(missing, one.clip(one.first, possible_from - 1))
            put(source, one.clip(possible_from, one.last))
    return Provenance(source=tuple(source), archive=tuple(archive), missing=tuple(missing))


@dataclass(frozen=True, slots=True)
class ResolvedRecords:
    """The selected records in batch order, and the newest batch that was complete at the time of resolution.

    `expected` is the number of records per batch, if it is recorded.
    """

    records: tuple[RecordRange, ...]
    ranges: SeqRanges
    through_batch: int
    expected: Mapping[int, int]

    @property
    def batches(self) -> int:
        """Number of batches that contain the records."""
        return len({one.batch_id for one in self.records})


class RecordResolver:
    """Resolves selections of one pipeline that reads a stream. Not thread-safe."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec, lake: Lake, home: PipelineHome) -> None:
        self.spec = self._spec = spec
        self._lake = lake
        self._home = home
        self.source = open_record_source(catalog, spec)

    def resolve(self, selection: Selection) -> ResolvedRecords:
        """Resolves the selection among the batches that are complete now.

        Raises:
            ConfigError: REPROCESS_EMPTY, REPROCESS_TOO_FRAGMENTED, or REPROCESS_SELECTION_INVALID for files.
            ContractError: LEDGER_WITHOUT_TIME, LEDGER_WITHOUT_OFFSET.
        """
        batches, ranges = self._completed_batches()
        chosen = self._selected_ranges(selection, batches, ranges)
        if not chosen:
            raise empty_selection_error(self._spec, "no record that a complete batch read matches")
        seqs = SeqRanges.merge(one.seqs for one in chosen)
        reject_fragmented(seqs)
        return self._resolve_ranges(ranges, seqs, batches)

    def resolve_again(self, seqs: SeqRanges, *, through_batch: int) -> ResolvedRecords:
        """Resolves planned ranges again, up to the same batch."""
        batches, ranges = self._completed_batches(through_batch)
        return self._resolve_ranges(ranges, seqs, batches)

    def provenance(self, spark: SparkSession, resolved: ResolvedRecords) -> Provenance:
        """Returns where each range of records can be read from now.

        Raises:
            TransientError: the source does not answer.
        """
        retained_ranges = self.source.retained(spark, resolved.records)
        archived = self._archived_batches(resolved.records)
        return assign_provenance(resolved.records, retained_ranges, archived=archived, countable=set(resolved.expected))

    def landed_ranges(self) -> list[RecordRange]:
        """Returns the ranges of all complete batches."""
        return self._completed_batches()[1]

    def _completed_batches(self, through_batch: int | None = None) -> tuple[list[BatchSummary], list[RecordRange]]:
        batches = BatchHistory(self._lake, self._home.objects, self._spec).completed(last=through_batch)
        if not batches:
            raise empty_selection_error(self._spec, "no batch is complete yet")
        spans = [
            BatchOffsets(generation=one.generation, batch_id=one.batch_id, start=one.start_offset, end=one.end_offset)
            for one in batches
            if one.end_offset is not None
        ]
        return batches, self.source.ranges(spans)

    def _resolve_ranges(
        self, ranges: Sequence[RecordRange], seqs: SeqRanges, batches: Sequence[BatchSummary]
    ) -> ResolvedRecords:
        chosen = [part for one in ranges for part in _clip_to(one, seqs)]
        used = {one.batch_id for one in chosen}
        summaries = [batch for batch in batches if batch.batch_id in used]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            stamps = dict(
                zip(
                    (batch.batch_id for batch in summaries),
                    pool.map(lambda batch: ingested_at_us(self._home, batch), summaries),
                    strict=True,
                )
            )
        stamped = tuple(replace(one, ingested_at_us=stamps[one.batch_id]) for one in chosen)
        expected = self._expected_counts(ranges, stamped) if used else {}
        return ResolvedRecords(stamped, SeqRanges.merge(one.seqs for one in stamped), batches[-1].batch_id, expected)

    def _expected_counts(self, all_ranges: Sequence[RecordRange], chosen: Sequence[RecordRange]) -> dict[int, int]:
        """Returns the number of records by batch.

        It is the recorded number for complete batches, and the number of positions for parts of gapless ranges.
        """
        used = {one.batch_id for one in chosen}
        facts = BatchHistory(self._lake, self._home.objects, self._spec).source_metadata(min(used), max(used))
        ranges_by_batch, chosen_by_batch = (
            _group_by_batch(one for one in all_ranges if one.batch_id in used),
            _group_by_batch(chosen),
        )
        expected = {}
        for batch, of_batch in chosen_by_batch.items():
            records = facts.get(batch, {}).get("records")
            if records is not None and _merged_seqs(of_batch) == _merged_seqs(ranges_by_batch[batch]):
                expected[batch] = int(records)
            elif all(one.is_gapless for one in of_batch):
                expected[batch] = sum(one.last - one.first + 1 for one in of_batch)
        return expected

    def _selected_ranges(
        self, selection: Selection, batches: Sequence[BatchSummary], ranges: Sequence[RecordRange]
    ) -> list[RecordRange]:
        if selection.from_start:
            return list(ranges)
        if selection.files:
            raise ConfigError(
                "REPROCESS_SELECTION_INVALID",
                f"{self._spec.pipeline!r} reads {self._spec.source.kind}, which has no files.",
                hint="Name records with --offsets, such as topic/0/100-200; or give --batches or --arrived.",
            )
        if selection.offsets:
            return [part for text in selection.offsets for part in self._ranges_by_offsets(ranges, text)]
        if selection.batches is not None:
            first, last = selection.batches
            return [one for one in ranges if first <= one.batch_id <= last]
        between = selection.arrived or selection.events or ("", "")
        start, end = (parse_instant(text) for text in between)
        if selection.arrived is not None:
            facts = BatchHistory(self._lake, self._home.objects, self._spec).source_metadata(last=batches[-1].batch_id)
            within = {batch for batch, noted in facts.items() if _arrived_within(noted, start, end)}
        else:
            within = self._batches_with_events(start, end)
        return [one for one in ranges if one.batch_id in within]

    def _ranges_by_offsets(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange]:
        named = self.source.select(ranges, text)
        if named is None:
            raise ConfigError(
                "REPROCESS_SELECTION_INVALID",
                f"{text!r} names no records of {self._spec.source.kind}.",
                hint="Write stream, partition or shard, first and last position, such as topic/0/100-200.",
            )
        return named

    def _batches_with_events(self, start: Any, end: Any) -> set[int]:
        """Returns the batches with an event of that time in a table, or with a quarantined row that arrived at that
        time.
        """
        dates = (ds.field("event_date") >= start.date()) & (ds.field("event_date") <= end.date())
        times = (ds.field("event_time") >= start) & (ds.field("event_time") < end)
        looks = [(table.name, dates & times) for table in self._spec.event_tables]
        looks.append((QUARANTINE_TABLE, (ds.field("arrived_at") >= start) & (ds.field("arrived_at") < end)))
        batches: set[int] = set()
        for table, condition in looks:
            key = paths.table(self._spec.pipeline, table)
            rows = self._lake.rows(key, columns=["_batch_id"], filters=condition)
            batches |= set(rows.column("_batch_id").unique().to_pylist()) if rows is not None else set()
        return batches

    def _archived_batches(self, ranges: Sequence[RecordRange]) -> set[int]:
        """Returns the batches in the archive. It stores all records of a batch under one date."""
        if not ranges:
            return set()
        first, last = min(one.batch_id for one in ranges), max(one.batch_id for one in ranges)
        condition = (ds.field("_batch_id") >= first) & (ds.field("_batch_id") <= last)
        key = paths.table(self._spec.pipeline, ARCHIVE)
        rows = self._lake.rows(key, columns=["_batch_id"], filters=condition)
        return set() if rows is None else set(rows.column("_batch_id").unique().to_pylist())


def _clip_to(batch_range: RecordRange, seqs: SeqRanges) -> Iterable[RecordRange]:
    low, high = batch_range.seqs
    for first, last in seqs.clip(low, high):
        part = batch_range.clip(batch_range.first + first - low, batch_range.first + last - low)
        if part is not None:
            yield part


def _group_by_batch(ranges: Iterable[RecordRange]) -> dict[int, list[RecordRange]]:
    by_batch: dict[int, list[RecordRange]] = defaultdict(list)
    for one in ranges:
        by_batch[one.batch_id].append(one)
    return by_batch


def _merged_seqs(ranges: Iterable[RecordRange]) -> tuple[tuple[int, int], ...]:
    return SeqRanges.merge(one.seqs for one in ranges).ranges


def _arrived_within(metadata: Mapping[str, Any], start: Any, end: Any) -> bool:
    oldest, newest = (parse_iso(metadata.get(f"{name}_arrived_at")) for name in ("oldest", "newest"))
    return oldest is not None and newest is not None and oldest < end and newest >= start
