"""Keeps catalogs up from the stream's process: a thread that notices created, changed and dropped tables.

It compares shortly after the stream's start, which creates tables and adds declared columns, and then regularly, since
keyed and gold tables appear later and columns can be added by events. A comparison reads the newest metadata of each
table and of its entry; without a difference nothing is written. A failure raises an alert and never ends the stream.

A Hive metastore needs a session of its own, so the night and the command synchronise it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from deltaworks.catalogs.sync import selected_catalogs, sync_pipeline
from deltaworks.specs.catalog import Catalog

log = logging.getLogger(__name__)
#: Times of comparisons after the start, in seconds; then one every `_INTERVAL_SECONDS`.
_FIRST_SECONDS: Final = (5.0, 60.0)
_INTERVAL_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 5.0


@contextmanager
def kept_up(catalog: Catalog, pipeline: str, *, has_lease: Callable[[], bool]) -> Iterator[None]:
    """Synchronises the catalogs of a pipeline while the block runs; does nothing if none is declared.

    Args:
        has_lease: whether this process still owns the pipeline; without it nothing is changed.
    """
    if not selected_catalogs(catalog, pipeline, has_spark=False):
        yield
        return
    keeper = CatalogKeeper(lambda: sync_pipeline(catalog, pipeline), has_lease=has_lease)
    keeper.start()
    try:
        yield
    finally:
        keeper.close()


class CatalogKeeper(threading.Thread):
    """The thread. `close` waits some seconds for a running synchronisation; a daemon thread blocks no exit.

    Args:
        synchronize: makes one pass; its exceptions are logged.
        waits: seconds before each of the first passes.
        interval_seconds: seconds between later passes.
    """

    def __init__(
        self,
        synchronize: Callable[[], object],
        *,
        has_lease: Callable[[], bool],
        waits: tuple[float, ...] = _FIRST_SECONDS,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        super().__init__(name="catalogs", daemon=True)
        self._synchronize, self._has_lease = synchronize, has_lease
        self._waits, self._interval_seconds = [*waits], interval_seconds
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(self._waits.pop(0) if self._waits else self._interval_seconds):
            if not self._has_lease():
                return
            try:
                self._synchronize()
            except Exception as error:  # Any failure: the stream continues, and the next pass retries.
                log.warning("catalogs are not synchronised: %s", error)

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        self.join(_CLOSE_SECONDS)
