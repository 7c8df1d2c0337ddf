"""Counts the rows that a reprocess would replace, and reports where it would read them from. Writes nothing.

Removed rows are counted exactly. Added rows are exact if everything is read, as for small inputs; otherwise they are a
range, extrapolated by bytes from a sample of the objects. Stream records are read only for an exact count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.events.chunks import Payload
from deltaworks.events.parse import ParserInputs
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.reprocess.plan import ReprocessPlanner, ReprocessRequest
from deltaworks.recovery.reprocess.read_records import read_records
from deltaworks.recovery.reprocess.reread import Rereader, RereadResult, RereadScope, RereadSettings
from deltaworks.recovery.reprocess.selection import ObjectResolver, ResolvedObjects, SeqRanges, SourceObject
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SAMPLE_OBJECTS = 20
#: Smaller inputs are read completely.
EXACT_BYTES, EXACT_OBJECTS = 64 << 20, 5_000
#: Fewer sampled rows of a table say nothing about their number.
MIN_SAMPLE_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """Removed (`rows_out`) and added rows (`rows_in`) of one table.

    `rows_out` is None if only Spark can read the table, `rows_in` is None if too little was read. Of an estimate, the
    true number is most likely between `rows_in_low` and `rows_in_high`.
    """

    table: str
    rows_out: int | None
    rows_in: int | None
    rows_in_low: int | None = None
    rows_in_high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessCount:
    """The counts of a dry run.

    If the source is a stream, `objects` counts batches, and `origins` lists the ranges of records by where they are
    read from. `exact` is whether everything was read; `missing_keys` are objects that could not be read.
    """

    objects: int
    bytes: int
    through_batch: int
    ranges: int
    sampled: int
    exact: bool
    missing_keys: tuple[str, ...]
    unmatched: int
    tables: tuple[TableCount, ...]
    origins: Mapping[str, int] = field(default_factory=dict)
    archive_frame: tuple[str, ...] = ()
    spark_work_count: int = 0


class ReprocessCounter:
    """Counts reprocesses of one pipeline. Not thread-safe."""

    def __init__(self, planner: ReprocessPlanner, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._planner = planner
        self._lake = lake
        self._objects = objects
        self._spec = spec

    def count_objects(
        self, request: ReprocessRequest, open_object: Callable[[FileReference], Payload], *, exact: bool = False
    ) -> ReprocessCount:
        """Counts a reprocess of landed objects.

        Args:
            open_object: reads an object.
            exact: read all objects, however many, instead of a sample of those that exceed EXACT_BYTES.

        Raises:
            Those of `plan`.
        """
        plan = self._planner.plan("count", request)
        ranges = SeqRanges(plan.ranges)
        resolved = ObjectResolver(self._lake, self._objects, self._spec).resolve_again(
            ranges, through_batch=plan.through_batch
        )
        exact = exact or (resolved.bytes <= EXACT_BYTES and len(resolved.objects) <= EXACT_OBJECTS)
        chosen = resolved.objects if exact else _sample(resolved.objects)
        names = [*plan.tables, *([QUARANTINE_TABLE] if plan.all_tables else [])]
        inputs = ParserInputs.pin(self._spec, self._lake.storage)
        scope = RereadScope(frozenset(names), plan.all_tables)
        rereader = Rereader(self._spec, scope, open_object, inputs=inputs)
        is_complete = len(chosen) == len(resolved.objects)
        # A sample is read object by object, since the range depends on how much the objects differ.
        counts = [_count(rereader, part) for part in ([chosen] if is_complete else [[source] for source in chosen])]
        sizes = [source.size for source in chosen]
        factor = _scale_factor(resolved, chosen)
        return ReprocessCount(
            objects=plan.objects,
            bytes=plan.source_bytes,
            through_batch=plan.through_batch,
            ranges=len(plan.ranges),
            sampled=len(chosen),
            exact=is_complete,
            missing_keys=tuple(rereader.result.missing_keys.values()),
            unmatched=round(rereader.result.unmatched * factor),
            tables=tuple(
                _table_count(
                    name,
                    self._rows_out(name, ranges),
                    [count[name] for count in counts],
                    sizes=() if is_complete else sizes,
                    total=resolved.bytes,
                )
                for name in names
            ),
        )

    def count_records(self, spark: SparkSession, request: ReprocessRequest, *, exact: bool = False) -> ReprocessCount:
        """Counts a reprocess of stream records, and reports where each range is read from at present.

        Args:
            exact: read all records to count the resulting rows.

        Raises:
            Those of `plan`; TransientError, the source does not answer.
        """
        plan, resolver = self._planner.plan("count", request), self._planner.records
        if resolver is None:
            raise TypeError(f"{self._spec.pipeline} reads no records")
        resolved = resolver.resolve_again(SeqRanges(plan.ranges), through_batch=plan.through_batch)
        parts = resolver.provenance(spark, resolved)
        names = [*plan.tables, *([QUARANTINE_TABLE] if plan.all_tables else [])]
        did = RereadResult()
        if exact:
            inputs = ParserInputs.pin(self._spec, self._lake.storage)
            scope = RereadScope(frozenset(names), plan.all_tables)
            work = RereadSettings(scope, destination=None, inputs=inputs)
            did = read_records(spark, self._lake, resolver, parts, work)
        ranges = SeqRanges.merge(one.seqs for one in parts.readable)
        return ReprocessCount(
            objects=plan.objects,
            bytes=0,
            through_batch=plan.through_batch,
            ranges=len(plan.ranges),
            sampled=sum(did.records.values()),
            exact=exact,
            missing_keys=tuple(one.key for one in parts.missing),
            unmatched=did.unmatched,
            tables=tuple(
                TableCount(
                    table=name,
                    rows_out=self._rows_out(name, ranges),
                    rows_in=did.rows.get(name, 0) if exact else None,
                )
                for name in names
            ),
            origins={"source": len(parts.source), "archive": len(parts.archive), "gone": len(parts.missing)},
            archive_frame=tuple(one.key for one in parts.archive),
        )

    def _rows_out(self, table: str, ranges: SeqRanges) -> int | None:
        key = paths.table(self._spec.pipeline, table)
        try:
            rows = self._lake.rows(key, columns=["_seq"], filters=ranges.expression())
        except Exception:  # only Spark can read this table; the count is informative
            return None
        return 0 if rows is None else int(rows.num_rows)


def _count(rereader: Rereader, objects: Sequence[SourceObject]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for table, part in rereader.read_objects(objects):
        rows[table] += part.num_rows
    return rows


def _table_count(
    table: str, rows_out: int | None, rows: Sequence[int], *, sizes: Sequence[int], total: int
) -> TableCount:
    """Returns the count of a table; `sizes` are those of the sampled objects, empty if all were read."""
    if not sizes:
        return TableCount(table=table, rows_out=rows_out, rows_in=sum(rows))
    if sum(rows) < MIN_SAMPLE_ROWS:
        return TableCount(table=table, rows_out=rows_out, rows_in=None)
    low, estimate, high = estimate_rows(rows, sizes, total)
    return TableCount(table=table, rows_out=rows_out, rows_in=estimate, rows_in_low=low, rows_in_high=high)


def estimate_rows(rows: Sequence[int], sizes: Sequence[int], total: int) -> tuple[int, int, int]:
    """Estimates the rows in `total` bytes from sampled objects, as a ratio to their bytes.

    Returns:
        The lower end of a range of two standard errors, the estimate, and the upper end. The range is wide if the
        objects differ, and for a single object it is everything from its own rows to twice the estimate.
    """
    read, sampled = sum(sizes), sum(rows)
    factor = total / read if read else 1.0
    estimate = sampled * factor
    if len(rows) < 2:
        return sampled, round(estimate), round(2 * estimate)
    ratio = sampled / read if read else 0.0
    deviation = sum((count - ratio * size) ** 2 for count, size in zip(rows, sizes, strict=True)) / (len(rows) - 1)
    unread = max(0.0, 1 - 1 / factor) if factor else 0.0
    error = 2 * factor * math.sqrt(len(rows) * deviation * unread)
    return max(sampled, round(estimate - error)), round(estimate), round(estimate + error)


def _sample(objects: Sequence[SourceObject]) -> list[SourceObject]:
    """Returns a sample of objects, spread evenly over the selection."""
    if len(objects) <= MAX_SAMPLE_OBJECTS:
        return list(objects)
    return [objects[at * len(objects) // MAX_SAMPLE_OBJECTS] for at in range(MAX_SAMPLE_OBJECTS)]


def _scale_factor(resolved: ResolvedObjects, chosen: Sequence[SourceObject]) -> float:
    """Returns the ratio of all objects to the sample, by bytes."""
    read = sum(source.size for source in chosen)
    return resolved.bytes / read if read else len(resolved.objects) / max(1, len(chosen))
