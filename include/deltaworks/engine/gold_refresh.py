"""Gold beside a stream: which runs build it, and how what cannot be built gets into the heartbeat.

What builds is named and not imported: neither the engine nor gold knows the other, and a stream without tables that
declare `refresh_seconds` loads none of it.
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
#: How long the end of a run waits for a build, whose jobs are cancelled.
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
    once: bool = False,
) -> Iterator[None]:
    """Build the tables that declare `refresh_seconds` while the block runs; nothing where there are none.

    A build that fails does not end the block. The end of the block waits up to END_SECONDS for one under way.

    Args:
        lease: of the stream; without it nothing is built.
        host: names the scheduler pool of the builds.
        once: the run is over what is there and ends by itself. It builds none.
    """
    if once or not spec.gold.stream_refreshed_tables:
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
