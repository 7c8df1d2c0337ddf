"""Converts Kafka records to rows of the archive table, and such rows back to the columns of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from deltaworks.sources.kafka.offsets import PARTITION_BITS, partition_seq
from deltaworks.sources.records import ORDINAL_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kafka_archive_columns(topics: Sequence[str], batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the archive table's columns for an Arrow batch of Kafka records.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED.
    """
    offsets, partitions = batch.column("offset"), batch.column("partition")
    return {
        "stream": batch.column("topic"),
        "partition": partitions.cast(pa.string()),
        "position": offsets.cast(pa.string()),
        "arrived_at_us": batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()),
        "_seq": _seqs(topics, batch.column("topic"), partitions.to_numpy(), offsets.to_numpy()),
        "record_key": batch.column("key"),
        "headers": batch.column("headers"),
        "value": batch.column("value"),
    }


def _seqs(topics: Sequence[str], names: pa.Array, partitions: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Returns the `partition_seq` of each record."""
    encoded = names.dictionary_encode()
    topic_indexes = np.array([topics.index(name) for name in encoded.dictionary.to_pylist()], np.int64)
    topic_numbers = topic_indexes[encoded.indices.to_numpy()]
    if len(offsets):
        # A number out of range would equal that of another record.
        partition_seq(int(topic_numbers.max()), int(partitions.max()), int(offsets.max()))
    return pa.array((topic_numbers << PARTITION_BITS | partitions.astype(np.int64)) << ORDINAL_BITS | offsets)


def kafka_columns(rows: DataFrame) -> DataFrame:
    """Converts rows of the archive table to the columns of Spark's Kafka connector."""
    from pyspark.sql import functions as F

    return rows.select(
        F.col("stream").alias("topic"),
        F.col("partition").cast("int").alias("partition"),
        F.col("position").cast("long").alias("offset"),
        F.timestamp_micros("arrived_at_us").alias("timestamp"),
        F.col("value"),
        F.col("record_key").alias("key"),
        F.col("headers"),
    )
