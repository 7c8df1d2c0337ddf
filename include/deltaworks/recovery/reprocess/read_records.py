"""Reads stream records again from the source or the archive, parses them and stages the rows as files.

Rows keep batch, arrival time and position. Records are counted while they are read: nothing is replaced if a batch
yields fewer records than it had.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.errors import ContractError
from deltaworks.recovery.reprocess.records import Provenance, RecordResolver, ResolvedRecords
from deltaworks.recovery.reprocess.reread import (
    PayloadOfBatch,
    Rereader,
    RereadResult,
    RereadSettings,
    raise_task_failure,
    stage_parts,
)
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.sources.base import PayloadReader
from deltaworks.sources.record_source import RecordRange
from deltaworks.sources.records import Record
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS_SHOWN = 5


class RangeStamps:
    """Looks up batch id and ingest time of a record by its `_seq`. Serialized to Spark tasks."""

    def __init__(self, ranges: Sequence[RecordRange]) -> None:
        rows = sorted((*one.seqs, one.batch_id, one.ingested_at_us) for one in ranges)
        self._firsts = [row[0] for row in rows]
        self._rows = rows

    def stamp_of(self, seq: int) -> tuple[int, int] | None:
        """Returns batch id and ingest time of the record; None if no range contains it."""
        at = bisect.bisect_right(self._firsts, seq) - 1
        if at < 0 or seq > self._rows[at][1]:
            return None
        return self._rows[at][2], self._rows[at][3]


def read_records(
    spark: SparkSession, lake: Lake, resolver: RecordResolver, parts: Provenance, work: RereadSettings
) -> RereadResult:
    """Reads each range again from the source or the archive.

    Raises:
        ContractError: REPROCESS_STOPPED; SOURCE_EXPIRED, the source has dropped records meanwhile.
    """
    did, reader, spec = RereadResult(), resolver.source.reader, resolver.spec
    if parts.source:
        did.add(_read_frame(resolver.source.frame(spark, parts.source), parts.source, reader, spec, work))
    if parts.archive:
        rows = _archived_records(spark, lake, spec, parts.archive)
        did.add(_read_frame(resolver.source.archive_frame(rows), parts.archive, reader, spec, work))
    raise_task_failure(did, spec)
    return did


def _archived_records(spark: SparkSession, lake: Lake, spec: PipelineSpec, ranges: Sequence[RecordRange]) -> DataFrame:
    from pyspark.sql import functions as F

    rows = spark.read.format("delta").load(lake.storage.spark_uri(paths.table(spec.pipeline, ARCHIVE)))
    instants = [one.ingested_at_us for one in ranges]
    dates = [F.to_date(F.timestamp_micros(F.lit(at))) for at in (min(instants), max(instants))]
    of_batches = F.col("_batch_id").isin(sorted({one.batch_id for one in ranges}))
    # One day of tolerance: without the prepared batch, the ledger's time is slightly later.
    within = F.col("archive_date").between(F.date_sub(dates[0], 1), F.date_add(dates[1], 1))
    seqs = SeqRanges.merge(one.seqs for one in ranges)
    return rows.where(of_batches & within & F.expr(seqs.sql())).sortWithinPartitions("_seq")


def _read_frame(
    frame: DataFrame, ranges: Sequence[RecordRange], reader: PayloadReader, spec: PipelineSpec, work: RereadSettings
) -> RereadResult:
    declared, stamps = spec.model_dump_json(), RangeStamps(ranges)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pipeline = PipelineSpec.model_validate_json(declared)
        rereader = Rereader(pipeline, work.scope, evolved=work.evolved, inputs=work.inputs)
        parts = rereader.read_payloads(_with_stamps(reader(batches), stamps, rereader.result))
        did = stage_parts(parts, rereader, work.destination).encode()
        yield pa.RecordBatch.from_pydict({"did": pa.array([did], pa.string())})

    total = RereadResult()
    for row in frame.mapInArrow(task, "did string").collect():
        total.add(RereadResult.decode(row["did"]))
    return total


def _with_stamps(records: Iterable[Record], stamps: RangeStamps, result: RereadResult) -> Iterator[PayloadOfBatch]:
    for record in records:
        stamp = stamps.stamp_of(record.payload.seq)
        if stamp is not None:
            result.records[stamp[0]] = result.records.get(stamp[0], 0) + 1
            yield stamp, record.payload


def reject_missing_records(spec: PipelineSpec, missing_ranges: Sequence[RecordRange]) -> None:
    """Rejects records that neither the source nor the archive has.

    Raises:
        ContractError: REPROCESS_RECORDS_EXPIRED.
    """
    if not missing_ranges:
        return
    keys = [one.key for one in missing_ranges]
    batches = sorted({one.batch_id for one in missing_ranges})
    without = "" if spec.archive is not None else " It declares no archive."
    raise ContractError(
        "REPROCESS_RECORDS_EXPIRED",
        f"Records of {len(batches)} batches of {spec.pipeline!r} ({batches[0]} to {batches[-1]}) are neither in "
        f"{spec.source.kind} nor in the archive any more: {', '.join(keys[:_KEYS_SHOWN])}"
        f"{', …' * (len(keys) > _KEYS_SHOWN)}.{without}",
    )


def reject_incomplete_batches(resolved: ResolvedRecords, parts: Provenance, result: RereadResult) -> None:
    """Rejects replacing rows of a batch that yielded fewer records than it had.

    Raises:
        ContractError: REPROCESS_RECORDS_MISSING.
    """
    partly = {one.batch_id for one in parts.missing}
    for batch, records in sorted(resolved.expected.items()):
        came = result.records.get(batch, 0)
        if batch not in partly and came != records:
            raise ContractError(
                "REPROCESS_RECORDS_MISSING", f"Batch {batch} yielded {came} records, but had {records} when it landed."
            )
