"""The data source reader that Spark calls. One driver process plans batches; tasks call `read`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from deltaworks.control.objects import open_objects
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.sources.kinesis.planner import Planner
from deltaworks.sources.kinesis.positions import Offset, ShardRange
from deltaworks.sources.kinesis.shard_range_reader import read_shard_range
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.specs.storage import AwsSpec, StorageSpec, resolved_variables, set_missing_variables

_LOGGER = logging.getLogger(__name__)


@dataclass
class ShardRangePartition(InputPartition):
    """A Spark input partition: one batch's part of one shard, with resolved secrets."""

    shard_range: ShardRange
    variables: dict[str, str]

    def __init__(self, shard_range: ShardRange, variables: dict[str, str]) -> None:
        self.shard_range = shard_range
        self.variables = variables


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's `DataSourceStreamReader` for `format("kinesis")`."""

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options
        self._open_planner: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._planner().initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner().prepare_for_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        planned = self._planner().next_batch(Offset.from_json(start), max_rows=max_rows)
        # Spark compares offsets as JSON text. Returning the same object reliably means "no new input".
        return start if planned is None else planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            return self._planner().lag_report()
        except Exception as error:  # a report must not end the query
            _LOGGER.warning("Could not determine the shards' lag: %s", error)
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        # The first start offset of a query may differ from the one its end was planned from; only the end matters.
        if start == end:
            return []
        variables = resolved_variables(self._options.aws) | resolved_variables(self._options.state)
        shard_ranges = self._planner().shard_ranges(Offset.from_json(end))
        return [ShardRangePartition(shard_range, variables) for shard_range in shard_ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ShardRangePartition):
            raise TypeError(f"{type(partition).__name__} is not a ShardRangePartition")
        set_missing_variables(partition.variables)
        options, process = self._options, os.getpid()
        stream = _stream(options.aws, options.stream, options.arn, process)
        state = QueryState(_objects(options.state, process))
        return read_shard_range(stream, state, partition.shard_range, options.fetch, stream_name=options.stream)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner().commit(Offset.from_json(end))

    def _planner(self) -> Planner:
        """Opens the planner on first use, because instances that never planned are serialized to tasks."""
        if self._open_planner is None:
            options = self._options
            stream = KinesisStream(options.aws, name=options.stream, arn=options.arn)
            self._open_planner = Planner(stream, QueryState(open_objects(options.state)), options)
        return self._open_planner


@functools.lru_cache(maxsize=8)
def _stream(aws: AwsSpec, name: str, arn: str | None, _process: int) -> KinesisStream:
    """Returns the client of this process for a stream. A client inherited through a fork would use its parent's
    connections.
    """
    return KinesisStream(aws, name=name, arn=arn)


@functools.lru_cache(maxsize=8)
def _objects(storage: StorageSpec, _process: int) -> Any:
    """Returns the object store of this process for a storage."""
    return open_objects(storage)
