"""Streaming queries whose batches the driver plans: the DataFrame carries offsets and no rows.

For sources whose batches only name their input; the driver reads these names itself. With a Python data source, Spark
would start separate processes (four until the first batch) and a job for the rows of every batch. Here Spark calls the
driver process through Py4J instead, by the class `PlannedOffsetsProvider` of our jar, as it does for `foreachBatch`.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
