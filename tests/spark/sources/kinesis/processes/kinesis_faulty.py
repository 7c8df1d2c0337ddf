"""The source with a fault in its tasks: DELTAWORKS_TEST_FAULT, once for each DELTAWORKS_TEST_FOLDER."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from deltaworks.sources.kinesis import stream_reader as kinesis_stream
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.kinesis.shard_range_reader import fetch_first
from deltaworks.sources.spark_formats.data_sources import KinesisDataSource


def die_once() -> None:
    """End the worker process as a kill does, the first time only."""
    try:
        Path(os.environ["DELTAWORKS_TEST_FOLDER"], "died").touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(9)


class DyingState(kinesis_stream.QueryState):
    """Kills its process before or after it fixes an end."""

    def record_shard_range_end(self, shard_range: Any, end: Any) -> Any:
        fault = os.environ["DELTAWORKS_TEST_FAULT"]
        if fault == "before_put":
            die_once()
        fixed = super().record_shard_range_end(shard_range, end)
        if fault == "after_put":
            die_once()
        return fixed


class FaultyReader(kinesis_stream.KinesisStreamReader):
    """Reads with the fault."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        fault = os.environ["DELTAWORKS_TEST_FAULT"]
        if fault == "unprotected":
            yield from self._unprotected(partition)
            return
        kinesis_stream.QueryState = DyingState  # type: ignore[misc]
        yield from super().read(partition)
        if fault == "after_rows":
            die_once()

    def _unprotected(self, partition: InputPartition) -> Iterator[Any]:
        """Hand over what is there, and note the end afterwards: what a source without records would do."""
        assert isinstance(partition, kinesis_stream.ShardRangePartition)
        options, shard_range = self._options, partition.shard_range
        stream = kinesis_stream.KinesisStream(options.aws, name=options.stream)
        fetched = fetch_first(stream, shard_range, options.fetch)
        yield from fetched.rows.batches(
            stream=options.stream, shard_id=shard_range.shard_id, first_ordinal=shard_range.start.rows
        )
        state = kinesis_stream.QueryState(kinesis_stream.open_objects(options.state))
        state.record_shard_range_end(shard_range, fetched.end)


class FaultyDataSource(KinesisDataSource):
    """`format("kinesis_faulty")`."""

    @classmethod
    def name(cls) -> str:
        return "kinesis_faulty"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FaultyReader(KinesisOptions.parse(self.options))
