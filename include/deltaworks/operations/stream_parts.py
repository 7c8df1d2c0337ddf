"""The parts of a stream that its job hands to the engine: the source, live queries, gold refresh and announcements.

The engine imports none of them, and a stream loads only what its pipeline declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from deltaworks.engine.runner import StreamContext, StreamParts
from deltaworks.sources.registry import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from deltaworks.control.locks.lease import Lease
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.live import LiveTableSpec

#: Maximum wait for a running gold build at the end of a run; its Spark jobs are cancelled.
CLOSE_SECONDS = 30.0


def start_live_query(
    spark: SparkSession, catalog: Catalog, pipeline: str, live: LiveTableSpec, *, before_merge: Callable[[], None]
) -> StreamingQuery:
    """Starts the query of one live table; see `engine.live.start_live_query`."""
    from deltaworks.engine import live as live_queries

    return live_queries.start_live_query(spark, catalog, pipeline, live, before_merge=before_merge)


def start_over_empty(catalog: Catalog, pipeline: str, lease: Lease, spark: SparkSession) -> None:
    """Starts a pipeline over that was edited before its tables had a row.

    Raises:
        ConfigError: START_OVER_TOO_LARGE, a table has rows.
    """
    from deltaworks.recovery.start_over import start_over

    reason = "edited before any table had a row"
    start_over(catalog, pipeline, dry_run=False, max_rows=0, reason=reason, spark=lambda: spark, lease=lease)


@contextmanager
def refresh_gold(stream: StreamContext) -> Iterator[None]:
    """Refreshes the gold tables with a short `lag` while the block runs; does nothing without such tables.

    A failing build does not end the block; the heartbeat reports it. Nothing is built after the stream has lost its
    lease, or if the run ends once the available data is processed. Leaving the block waits up to CLOSE_SECONDS for a
    running build.
    """
    if stream.available_now or not stream.spec.gold.stream_refreshed_tables:
        yield
        return
    from deltaworks.gold.refresh_loop import GoldRefreshLoop

    def report(failures: tuple[Mapping[str, Any], ...]) -> None:
        stream.heartbeat.update(gold_failures=tuple(dict(failure) for failure in failures))

    loop = GoldRefreshLoop(
        stream.spark,
        stream.catalog,
        stream.spec.pipeline,
        pool=stream.host.pool("gold"),
        holds_lease=lambda: not stream.lease.is_lost,
        committed=stream.batch_committed,
        report_failures=report,
    )
    loop.start()
    try:
        yield
    finally:
        loop.close(wait_seconds=CLOSE_SECONDS)


@contextmanager
def announce_views(stream: StreamContext) -> Iterator[None]:
    """Publishes results of views that declare `announce` while the block runs; does nothing without such views."""
    if all(view.announce is None for view in stream.spec.views):
        yield
        return
    from deltaworks.engine.view_announcer import view_announcements

    with view_announcements(stream.catalog, stream.spec, stream.lease):
        yield


@contextmanager
def keep_catalogs(stream: StreamContext) -> Iterator[None]:
    """Registers the pipeline's tables in the environment's catalogs while the block runs; does nothing without any."""
    if not stream.catalog.environment.catalogs:
        yield
        return
    from deltaworks.catalogs.sync import kept_up

    with kept_up(stream.catalog, stream.spec.pipeline, has_lease=lambda: not stream.lease.is_lost):
        yield


@contextmanager
def announce_assets(stream: StreamContext) -> Iterator[None]:
    """Creates events of Airflow's assets for tables with new rows; does nothing if all available data is processed."""
    if stream.available_now:
        yield
        return
    from deltaworks.operations.asset_events import asset_events

    with asset_events(stream.catalog, stream.spec.pipeline, has_lease=lambda: not stream.lease.is_lost):
        yield


STREAM_PARTS: Final = StreamParts(
    open_source=open_source,
    start_live_query=start_live_query,
    start_over_empty=start_over_empty,
    companions=(announce_views, refresh_gold, keep_catalogs, announce_assets),
)
