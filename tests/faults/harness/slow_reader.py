"""A reader that pins a table version for longer than VACUUM's retention."""

from __future__ import annotations

import time
from pathlib import Path

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.faults.harness.fault_project import PIPELINE
from tests.faults.harness.operations import Counts

TABLE = "k04"
_READ_EVERY = 5.0


class SlowReader:
    """Reads a version repeatedly for `pinned_seconds`, then unpins it."""

    def __init__(self, catalog: Catalog, *, stop: Path, pinned_seconds: float) -> None:
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._stop = stop
        self._pinned_seconds = pinned_seconds

    def read_pinned(self) -> Counts:
        """Pins and reads one version until the time is over.

        Raises:
            AssertionError: two reads returned different rows.
        """
        version = present(self._lake.open(paths.table(PIPELINE, TABLE))).version()
        PipelineHome(self._objects, PIPELINE).readers.pin(TABLE, reader="slow", version=version, hours=1)
        try:
            first, reads = self._ids(version), 1
            end = time.monotonic() + self._pinned_seconds
            while time.monotonic() < end and not self._stop.exists():
                time.sleep(_READ_EVERY)
                assert self._ids(version) == first, f"version {version} of {TABLE} has changed"
                reads += 1
        finally:
            PipelineHome(self._objects, PIPELINE).readers.unpin(TABLE, reader="slow")
        return {"reads": reads, "rows": len(first)}

    def _ids(self, version: int) -> list[str]:
        opened = present(self._lake.open(paths.table(PIPELINE, TABLE)))
        opened.load_as_version(version)
        rows = opened.to_pyarrow_table(columns=["event_id"])
        return sorted(rows.column("event_id").to_pylist())
