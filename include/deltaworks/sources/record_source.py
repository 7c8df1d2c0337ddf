"""The interface for re-reading records of a stream: the ranges each batch read, the records still retained, and their
rows.

Record sources implement `RecordSource` in addition to `Source`. The driver selects ranges; tasks read them.
"""

from __future__ import annotations

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
    """The offsets of one complete batch in the ledger, as Spark wrote them."""

    generation: int
    batch_id: int
    start: Mapping[str, Any] | None
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Records of one partition or shard that one batch read.

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
        """The range's name for messages, in the form of the object keys of its rows."""
        last = "" if self.last == LAST_ORDINAL else self.last
        return f"{self.stream}/{self.partition}/{self.first}-{last}"

    def clip(self, first: int, last: int) -> RecordRange | None:
        """Returns the part of the range between two ordinals, both inclusive; None if it is empty."""
        first, last = max(first, self.first), min(last, self.last)
        return None if first > last else replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """The first ordinals that a source certainly and possibly still has.

    Possible records are read and counted before anything is replaced.
    """

    certain_from: int
    possible_from: int


NOTHING_RETAINED = RetainedRange(LAST_ORDINAL + 1, LAST_ORDINAL + 1)


class RecordSource(Protocol):
    """Re-reads records of one pipeline's source. Used by the driver, in one thread."""

    @property
    def reader(self) -> PayloadReader:
        """Converts rows of `frame` and `archive_frame` into payloads, as the stream does."""

    def ranges(self, batches: Sequence[BatchOffsets]) -> list[RecordRange]:
        """Returns the ranges that these batches read, in order. `batches` are consecutive in the ledger.

        Raises:
            ContractError: LEDGER_WITHOUT_OFFSET, the start of a batch is not recorded.
        """

    def select(self, ranges: Sequence[RecordRange], text: str) -> list[RecordRange] | None:
        """Returns the ranges, or parts of them, that a text such as `topic/0/100-200` selects; None if this source has
        no ranges of that form.
        """

    def retained(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> list[RetainedRange]:
        """Returns what the source still retains of each range, in their order.

        Raises:
            TransientError: the source does not answer.
        """

    def frame(self, spark: SparkSession, ranges: Sequence[RecordRange]) -> DataFrame:
        """Returns the records of these ranges from the source, possibly with others between them."""

    def archive_frame(self, rows: DataFrame) -> DataFrame:
        """Converts rows of the archive to the columns of `frame`."""
