"""Sources that each break one promise of the contract, which the checks must detect."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltaworks.events.chunks import Payload
from deltaworks.sources.base import ObjectSlice, OffsetRange, Slice, Source, Task
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.sources.worker_crashes import CrashIsolation


class WrappedSource:
    """Delegates to a source; subclasses change one method."""

    def __init__(self, inner: Source, spark: SparkSession) -> None:
        self.inner = inner
        self.spark = spark

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        return self.inner.frame(spark, start=start)

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return self.inner.slice_of(batch, batch_id=batch_id, offsets=offsets)

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        return self.inner.backlog(progress)


class OpensInDriver(WrappedSource):
    """Opens the objects in the driver and hands tasks their content."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        found = self.inner.slice_of(batch, batch_id=batch_id, offsets=offsets)
        assert isinstance(found, ObjectSlice)
        opened = [found.opener(reference) for reference in found.references]
        return dataclasses.replace(found, references=opened, opener=lambda payload: payload)


class ReversesPositions(WrappedSource):
    """Numbers a task's payloads in reverse order."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return ChangedSlice(super().slice_of(batch, batch_id=batch_id, offsets=offsets), _reversed)


class IgnoresBatchEnd(WrappedSource):
    """Reads a topic to its current end and ignores the batch's end offset."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        declared: Any = self.inner
        source = declared._source
        options = {"kafka.bootstrap.servers": str(source.bootstrap_servers), "subscribe": ",".join(source.topics)}
        now = self.spark.read.format("kafka").options(**options, includeHeaders="true").load()
        return super().slice_of(now, batch_id=batch_id, offsets=offsets)


class DropsPayloads(WrappedSource):
    """Hands each task the first of its payloads only."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return ChangedSlice(
            super().slice_of(batch, batch_id=batch_id, offsets=offsets), lambda payloads: itertools.islice(payloads, 1)
        )


class DuplicatesPayloads(WrappedSource):
    """Hands each task its payloads twice."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return ChangedSlice(super().slice_of(batch, batch_id=batch_id, offsets=offsets), _twice)


class FailsOnUnreadable(WrappedSource):
    """Fails on unreadable payloads."""

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        return ChangedSlice(
            super().slice_of(batch, batch_id=batch_id, offsets=offsets), lambda payloads: map(_readable, payloads)
        )


class ChangedSlice:
    """A slice whose tasks get modified payloads."""

    def __init__(self, inner: Slice, change: Callable[[Iterable[Payload]], Iterable[Payload]]) -> None:
        self._inner, self._change = inner, change

    @property
    def metadata(self) -> dict[str, Any]:
        return self._inner.metadata

    def is_empty(self) -> bool:
        return self._inner.is_empty()

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        change = self._change
        return self._inner.read(spark, lambda payloads: task(change(payloads)), tasks=tasks)

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        change = self._change
        return self._inner.read_isolated(
            spark, lambda payloads: task(change(payloads)), tasks=tasks, isolation=isolation
        )


def _twice(payloads: Iterable[Payload]) -> Iterator[Payload]:
    for payload in payloads:
        yield from (payload, payload)


def _readable(payload: Payload) -> Payload:
    json.loads(payload.data or b"")
    return payload


def _reversed(payloads: Iterable[Payload]) -> Iterator[Payload]:
    found = list(payloads)
    seqs = sorted((payload.seq for payload in found), reverse=True)
    return (dataclasses.replace(payload, seq=seq) for payload, seq in zip(found, seqs, strict=True))


BROKEN: Mapping[str, Callable[[Source, SparkSession], WrappedSource]] = {
    "in_driver": OpensInDriver,
    "reversed": ReversesPositions,
    "growing": IgnoresBatchEnd,
    "forgetful": DropsPayloads,
    "doubling": DuplicatesPayloads,
    "strict": FailsOnUnreadable,
}
