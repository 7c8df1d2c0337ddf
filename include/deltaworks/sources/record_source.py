"""Interfaces for sources of records: re-reading records of earlier batches, and batches that the driver plans.

Record sources implement `RecordSource` in addition to `Source`: which ranges each batch read, which are retained, and
their rows. The driver selects ranges; tasks read them.

Sources whose batches only name their input are planned by the driver (`BatchPlanner`): the DataFrame carries offsets
and no rows. With a Python data source, Spark would start separate processes (four until the first batch) and a job for
the rows of every batch. Here Spark calls the driver process through Py4J instead, by the class `PlannedOffsetsProvider`
of our jar, as it does for `foreachBatch`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from deltaworks.sources.base import PayloadReader
from deltaworks.sources.records import ORDINAL_BITS, record_seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Upper bound of ordinals, for a range whose end is not recorded.
LAST_ORDINAL = (1 << ORDINAL_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """Start and end offset of a complete batch in the ledger, as Spark wrote them."""

    generation: int
    batch_id: int
    start: Mapping[str, Any] | None
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Consecutive records of one partition or shard that one batch read.

    Attributes:
        stream, partition: names, as in the object keys of rows.
        number: number of the partition among all that the pipeline reads, as in `_seq`.
        first, last: ordinals in the partition, both inclusive.
        ingested_at_us: ingestion timestamp of the batch's rows, once looked up.
        is_gapless: whether every ordinal in between has a record.
        details: further values that the source needs to read the range; plain JSON values.
    """

    stream: str
    partition: str
    number: int
    first: int
    last: int
    batch_id: int
    ingested_at_us: int = 0
    is_gapless: bool = False
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def seqs(self) -> tuple[int, int]:
        """The `_seq` of the first and the last record."""
        return record_seq(self.number, self.first), record_seq(self.number, self.last)

    @property
    def key(self) -> str:
        """The range's name in messages, of the same form as the object keys of its rows."""
        last = "" if self.last == LAST_ORDINAL else self.last
        return f"{self.stream}/{self.partition}/{self.first}-{last}"

    def clip(self, first: int, last: int) -> RecordRange | None:
        """Returns the part of the range between two ordinals, both inclusive; None if it is empty."""
        first, last = max(first, self.first), min(last, self.last)
        return None if first > last else replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """Which records of a range the source still has: certainly from ordinal `certain_from`, possibly from
    `possible_from`.

    Records that are only possibly retained are read and counted before any rows are replaced.
    """

    certain_from: int
    possible_from: int


NOTHING_RETAINED = RetainedRange(LAST_ORDINAL + 1, LAST_ORDINAL + 1)


class RecordSource(Protocol):
    """Re-reads records of one pipeline's source. Used by one thread of the driver."""

    @property
    def reader(self) -> PayloadReader:
        """Returns the function that converts rows of `frame` and `archive_frame` into payloads, as the stream does."""

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """Returns the ranges that these batches read, in order. `batches` are consecutive in the ledger.

        Raises:
            ContractError: LEDGER_WITHOUT_OFFSET, the start of a batch is not recorded.
        """

    def select(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange] | None:
        """Returns the ranges, or parts of ranges, that a text such as `topic/0/100-200` selects. None if the text has
        another form.
        """

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """Returns which records the source still retains, per range and in the same order.

        Raises:
            TransientError: the source does not answer.
        """

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """Returns the records of these ranges from the source. Records between the ranges may be included."""

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Converts rows of the archive table to the columns of `frame`."""


_FORMAT = "io.deltaworks.sources.PlannedOffsetsProvider"


class BatchPlanner(Protocol):
    """Plans the end offset of the next batch. Called by the query's thread; an exception ends the query.

    Offsets are plain JSON objects, as in the query's offset log.
    """

    def initial_offset(self) -> dict[str, Any]:
        """Returns the offset at which a query without a checkpoint begins."""

    def next_end_offset(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the end offset of the batch after `start`; None if there is no new input."""

    def latest_offset(self) -> dict[str, Any] | None:
        """Returns the latest available offset for the query's progress; None if unknown."""

    def prepare_for_available_now(self) -> None:
        """Limits all further batches to the input available now."""


def planned_frame(spark: SparkSession, planner: BatchPlanner) -> DataFrame:
    """Returns a streaming DataFrame without rows for one query. The planner decides where its batches end.

    Needs a session with a JVM in this process, not Spark Connect.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    name, jvm = uuid.uuid4().hex, context._jvm
    assert jvm is not None
    jvm.io.deltaworks.sources.PlannedOffsetsProvider.register(name, _JavaPlanner(planner))
    return spark.readStream.format(_FORMAT).option("planner", name).load()


class _JavaPlanner:
    """Adapts a planner for the JVM: offsets are JSON texts."""

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner

    def initialOffset(self) -> str:
        return json.dumps(self._planner.initial_offset())

    def latestOffset(self, start: str) -> str:
        end = self._planner.next_end_offset(json.loads(start))
        # Spark compares offsets as texts. Returning the same text reliably means "no new input".
        return start if end is None else json.dumps(end)

    def reportLatestOffset(self) -> str | None:
        latest = self._planner.latest_offset()
        return None if latest is None else json.dumps(latest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.prepare_for_available_now()

    class Java:
        implements = ("io.deltaworks.sources.OffsetPlanner",)
