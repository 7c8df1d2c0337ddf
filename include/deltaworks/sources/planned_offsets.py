"""Queries whose batches the driver plans: frames have offsets and no rows, and whoever lands a batch reads by them.

For sources whose batches name what to read and are read by the driver anyway. Spark runs a source written in Python in
processes of its own, four of them until a query's first batch, and a job for the rows of every batch; here it asks the
driver's process by Py4J, through the class `PlannedOffsetsProvider` of our jar, as it does for `foreachBatch`.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMAT = "io.deltaworks.sources.PlannedOffsetsProvider"


class BatchPlanner(Protocol):
    """Says how far a query's next batch reads. Called by the query's own thread; an exception ends the query.

    Offsets are plain JSON objects, as they stand in the query's offset log.
    """

    def initial_offset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint yet."""

    def next_end_offset(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """Where the batch after `start` ends; None where there is nothing."""

    def latest_offset(self) -> dict[str, Any] | None:
        """The newest there is, for the query's progress; None where it is not known."""

    def prepare_for_available_now(self) -> None:
        """Have no batch read beyond what is there now."""


def planned_frame(spark: SparkSession, planner: BatchPlanner) -> DataFrame:
    """A streaming DataFrame without rows, for one query, whose batches end where the planner says.

    The session is one with a JVM of its own process, not of Spark Connect.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    name, jvm = uuid.uuid4().hex, context._jvm
    assert jvm is not None
    jvm.io.deltaworks.sources.PlannedOffsetsProvider.register(name, _JavaPlanner(planner))
    return spark.readStream.format(_FORMAT).option("planner", name).load()


class _JavaPlanner:
    """A planner as the JVM calls it: offsets are texts."""

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner

    def initialOffset(self) -> str:
        return json.dumps(self._planner.initial_offset())

    def latestOffset(self, start: str) -> str:
        end = self._planner.next_end_offset(json.loads(start))
        # Spark compares offsets as texts: the same one is the sure way to say "nothing new".
        return start if end is None else json.dumps(end)

    def reportLatestOffset(self) -> str | None:
        newest = self._planner.latest_offset()
        return None if newest is None else json.dumps(newest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.prepare_for_available_now()

    class Java:
        implements = ("io.deltaworks.sources.OffsetPlanner",)
