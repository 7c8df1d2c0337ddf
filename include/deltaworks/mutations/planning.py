"""How Spark plans and runs what requests come to: settings of a session for the time of a resolve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from deltaworks.tables.spark.session import session_settings

#: Up to so many requests, a process that has just started compiles and schedules longer than it computes.
FEW_REQUESTS = 20_000

#: Frames kept on the executors have no statistics, so Spark takes them for large and builds Bloom filters of a megabyte
#: for every key of a join, which it then ships with every task: three times the seconds of the last join.
_ALWAYS = {"spark.sql.optimizer.runtime.bloomFilter.enabled": "false"}
_FEW = {
    # One job a query and not one a stage, one task a stage, and expressions that are interpreted and not compiled.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def resolving(session: SparkSession, *, requests: int) -> Iterator[None]:
    """Settings for a block that resolves so many requests and materialises what they come to, put back after it.

    The answer does not depend on them.
    """
    with session_settings(session, {**_ALWAYS, **(_FEW if requests <= FEW_REQUESTS else {})}):
        yield
