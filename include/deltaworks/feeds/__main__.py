"""Delivers the feeds of a pipeline: `python -m deltaworks.feeds --feeds games`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from deltaworks.control import paths
from deltaworks.control.daemon_main import DaemonKind, run_daemon
from deltaworks.feeds.process import FeedsProcess
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id


def open_feeds(catalog: Catalog, pipeline: str, on_tick: Callable[[], None]) -> FeedsProcess:
    """Creates the process of a pipeline's feeds.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, PIPELINE_WITHOUT_FEEDS, or an invalid declaration.
    """
    return FeedsProcess(catalog, pipeline, on_tick=on_tick)


FEEDS = DaemonKind(
    noun="feeds",
    module="deltaworks.feeds",
    help="a pipeline that declares feeds",
    control_folder=paths.feeds_control,
    build=open_feeds,
    failure_condition="FEEDS_FAILED",
    cli_name=lambda pipeline: dag_id(pipeline, "feeds"),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs a pipeline's feeds; returns the exit code."""
    return run_daemon(FEEDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
