"""Converts Kinesis records to rows of the archive table, and rows of the archive table back to the reader's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deltaworks.sources.kinesis.shards import row_seq
from deltaworks.sources.records import ORDINAL_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kinesis_archive_columns(stream: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Returns the archive table's columns for an Arrow batch of records.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, KINESIS_SHARD_UNNUMBERED.
    """
    shards, ordinals = batch.column("shardId"), batch.column("ordinal")
    seqs = [row_seq(shard, ordinal) for shard, ordinal in zip(shards.to_pylist(), ordinals.to_pylist(), strict=True)]
    return {
        "stream": pa.repeat(pa.scalar(stream), batch.num_rows),
        "partition": shards,
        "position": batch.column("sequenceNumber"),
        "arrived_at_us": batch.column("approximateArrivalTimestamp").cast(pa.int64()),
        "_seq": pa.array(seqs, pa.int64()),
        "record_key": batch.column("partitionKey").cast(pa.binary()),
        "value": batch.column("data"),
    }


def kinesis_columns(rows: DataFrame) -> DataFrame:
    """Converts rows of the archive table to the columns that the Kinesis reader returns."""
    from pyspark.sql import functions as F

    return rows.select(
        F.col("partition").alias("shardId"),
        F.col("position").alias("sequenceNumber"),
        F.col("record_key").cast("string").alias("partitionKey"),
        F.col("value").alias("data"),
        F.timestamp_micros("arrived_at_us").alias("approximateArrivalTimestamp"),
        F.col("_seq").bitwiseAND(F.lit((1 << ORDINAL_BITS) - 1)).alias("ordinal"),
    )
