"""What reads records of a stream again: which a batch had read, which are there still, and their rows for Spark.

A source of records implements `RecordSource` beside its stream. The driver names ranges; tasks read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from deltaworks.sources.base import PayloadReader
from deltaworks.sources.records import ORDINAL_BITS, record_seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The last place that a partition or shard can have: of a range whose end nobody has on record.
LAST_ORDINAL = (1 << ORDINAL_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """What the ledger says of one complete batch: its offsets, as Spark wrote them."""

    generation: int
    batch_id: int
    start: Mapping[str, Any] | None
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Records of one partition or shard that one batch read.

    Attributes:
        stream, partition: names of both, as object keys of rows have them.
        number: of the partition among all that the pipeline reads, as `_seq` has it.
        first, last: places in the partition's order, both included.
        ingested_at_us: the stamp of the batch's rows, where it has been looked up.
        counted: whether every place in between has a record.
        place: what else the source needs to read it; plain JSON values.
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
        """The `_seq` of its first and its last record."""
        return record_seq(self.number, self.first), record_seq(self.number, self.last)

    @property
    def key(self) -> str:
        """Its name for people, in the form of the object keys of its rows."""
        last = "" if self.last == LAST_ORDINAL else self.last
        return f"{self.stream}/{self.partition}/{self.first}-{last}"

    def clip(self, first: int, last: int) -> RecordRange | None:
        """What of it lies between two places, both included; None where nothing does."""
        first, last = max(first, self.first), min(last, self.last)
        return None if first > last else replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """From which place on a source surely has the records of a range, and from which on it may have them.

    What it may have is read and counted before anything is replaced.
    """

    certain_from: int
    possible_from: int


NOTHING_RETAINED = RetainedRange(LAST_ORDINAL + 1, LAST_ORDINAL + 1)


class RecordSource(Protocol):
    """Reads the records of one pipeline's source again. For the driver; used by one thread."""

    @property
    def reader(self) -> PayloadReader:
        """Makes payloads of the rows of `frame` and `archive_frame`, as the stream does."""

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """What these batches read, in their order. `batches` are all that follow each other in the ledger.

        Raises:
            ContractError: LEDGER_WITHOUT_OFFSET, where one began is not on record.
        """

    def select(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange] | None:
        """Those of the ranges, or parts of them, that a text such as `topic/0/100-200` names; None where it names
        nothing in a form that this source has."""

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """What the source still has of them, in their order.

        Raises:
            TransientError: the source does not answer.
        """

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """The records of these ranges from the source, and perhaps others between them."""

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Rows of the archive as `frame` would give them."""
