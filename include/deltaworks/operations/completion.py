"""Waits until landed objects are in the tables of their pipeline, and then in its gold.

Bronze is complete when a completed batch has read the file events of all objects. From then on gold is complete when
each table was built from those versions of its inputs, or when nothing that it reads has changed since its build. Both
are read from the lake, so the wait is right whichever process does the work, and can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from deltaworks.control import paths
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.object_status import end_seq
from deltaworks.errors import TransientError
from deltaworks.gold.pinned_inputs import read_built_from
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, cross_pipeline_table
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.lake import Lake

Stage = Literal["bronze", "gold"]
POLL_SECONDS = 0.5


@dataclass(slots=True)
class LandedObjects:
    """Objects of one pipeline that have landed, and how far they have come. Used by one thread."""

    catalog: Catalog
    pipeline: str
    keys: Collection[str]
    _seqs: dict[str, int] = field(default_factory=dict, init=False)
    _read_to: int = field(default=0, init=False)
    _versions: dict[str, int] | None = field(default=None, init=False)
    _lake: Lake = field(init=False)

    def __post_init__(self) -> None:
        self._lake = Lake(self.catalog.environment.lake)

    def waiting_objects(self) -> int:
        """Returns the number of objects that no completed batch has read."""
        spec = self.catalog.pipeline(self.pipeline)
        if isinstance(spec.source, FileSourceSpec):
            self._find_events(spec.source.relay, spec.source.bucket)
        history = BatchHistory(self._lake, self._lake.objects, spec)
        newest = history.last_completed()
        end = 0 if newest is None else end_seq(history.completed(newest))
        return sum(self._seqs.get(key, end + 1) > end for key in self.keys)

    def waiting_gold(self) -> list[str]:
        """Returns the gold tables without the objects' events. Call it after no object has waited."""
        spec = self.catalog.pipeline(self.pipeline)
        tables = spec.gold.stream_refreshed_tables or spec.gold.tables
        if self._versions is None:
            reads = {name for table in tables for name in table.reads if cross_pipeline_table(name) is None}
            opened = {name: self._lake.open(paths.table(self.pipeline, name)) for name in reads}
            self._versions = {name: table.version() for name, table in opened.items() if table is not None}
        return [table.name for table in tables if not self._is_built(table, self._versions)]

    def _find_events(self, relay: str, bucket: str) -> None:
        """Finds the newest file event of each object among those logged since the last look."""
        import pyarrow.dataset as ds

        log = FileEventLog(self._lake, relay)
        last = log.last_seq()
        if last == self._read_to:
            return
        landed_here = ds.field("key").isin(list(self.keys)) & (ds.field("bucket") == bucket)
        parts = log.read_parts() if self._read_to == 0 else [log.read(self._read_to, last)]
        for part in parts:
            for row in part.filter(landed_here).select(["seq", "key"]).to_pylist():
                self._seqs[row["key"]] = max(row["seq"], self._seqs.get(row["key"], 0))
        self._read_to = last

    def _is_built(self, table: GoldTableSpec, versions: Mapping[str, int]) -> bool:
        built = read_built_from(self._lake, paths.table(self.pipeline, table.name))
        for name in table.reads:
            version, before = versions.get(name), built.versions.get(name)
            if version is None or (before is not None and before >= version):
                continue
            key = paths.table(self.pipeline, name)
            if changed_partitions(self._lake, key, after_version=before, up_to_version=version):
                return False
        return True


def wait_until_complete(
    landed: LandedObjects,
    stage: Stage,
    *,
    wait_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Waits until all events of the objects are in this stage; returns the seconds waited.

    Raises:
        TransientError: LANDING_INCOMPLETE, they are not after `wait_seconds`.
    """
    started = clock()
    while True:
        waiting = landed.waiting_objects()
        tables = landed.waiting_gold() if stage == "gold" and not waiting else []
        if not waiting and not tables:
            return clock() - started
        if clock() - started >= wait_seconds:
            what = f"{waiting} of {len(landed.keys)} objects wait" if waiting else f"{', '.join(tables)} are not built"
            raise TransientError(
                "LANDING_INCOMPLETE",
                f"After {wait_seconds:g} s the landed events of {landed.pipeline!r} are not in {stage}: {what}.",
                hint=f"See `deltaworks batches {landed.pipeline}`; run the command again to wait on.",
            )
        sleep(POLL_SECONDS)
