"""Runs the gold refresh loop next to a stream, and reports its failures in the heartbeat.

The loop's module is imported dynamically: the engine must not depend on gold, and streams without `refresh_seconds` do
not load it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.locks.lease import Lease
from deltaworks.engine.driver_host import DriverHost
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLD_LOOP = "deltaworks.gold.refresh_loop:GoldRefreshLoop"
#: Maximum wait for a running build at the end of a run; its Spark jobs are cancelled.
CLOSE_SECONDS = 30.0


@contextmanager
def gold_refresh_running(
    spark: SparkSession,
    catalog: Catalog,
    spec: PipelineSpec,
    lease: Lease,
    heartbeat: HeartbeatWriter,
    *,
    host: DriverHost,
    available_now: bool = False,
) -> Iterator[None]:
    """Refreshes the gold tables that declare `refresh_seconds` while the block runs; does nothing without such tables.

    A failing build does not end the block. Leaving the block waits up to CLOSE_SECONDS for a running build.

    Args:
        lease: the stream's lease; nothing is built after it is lost.
        host: provides the scheduler pool of the builds.
        available_now: the run ends once the available data is processed; then nothing is built.
    """
    if available_now or not spec.gold.stream_refreshed_tables:
        yield
        return
    module, _, name = GOLD_LOOP.partition(":")

    def report(failures: tuple[Mapping[str, Any], ...]) -> None:
        heartbeat.update(gold_failures=tuple(dict(failure) for failure in failures))

    loop = getattr(importlib.import_module(module), name)(
        spark,
        catalog,
        spec.pipeline,
        pool=host.pool("gold"),
        holds_lease=lambda: not lease.is_lost,
        report_failures=report,
    )
    loop.start()
    try:
        yield
    finally:
        loop.close(wait_seconds=CLOSE_SECONDS)
