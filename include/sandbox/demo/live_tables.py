"""Waits until live tables have processed all ingested batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.checkpoint import live_next_version
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.live import LiveTableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from sandbox.stack.waiting import wait_while_progressing

_MAX_COMMITS = 20
_PATIENCE_SECONDS = 300.0


def await_live(catalog: Catalog, pipelines: Sequence[str]) -> bool:
    """Waits until the live tables of these pipelines have processed every batch of their bronze tables.

    Returns:
        False if they make no more progress; the answers then show the missing rows.
    """
    lake = Lake(catalog.environment.lake)
    live = [(name, table) for name in pipelines for table in catalog.pipeline(name).live]
    landed = [_last_data_version(lake, name, table.reads) for name, table in live]

    def read() -> Hashable:
        return tuple(_consumed_version(catalog, lake, name, table) for name, table in live)

    def all_read() -> bool:
        return all(
            _consumed_version(catalog, lake, name, table) > version
            for (name, table), version in zip(live, landed, strict=True)
        )

    return wait_while_progressing(all_read, read, stall_seconds=_PATIENCE_SECONDS, poll_seconds=1.0) is None


def _consumed_version(catalog: Catalog, lake: Lake, pipeline: str, table: LiveTableSpec) -> int:
    if table.kind == "counts":
        return live_next_version(PipelineHome(open_objects(catalog.environment.lake), pipeline), table.name)
    return _merged_version(lake, pipeline, table.name)


def _last_data_version(lake: Lake, pipeline: str, table: str) -> int:
    """Returns the version of a bronze table after the last batch with rows for it, by the ledger."""
    steps = lake.rows(paths.pipeline_control(pipeline, "batch_metadata_store"), columns=["table_name", "delta_version"])
    rows = steps.to_pylist() if steps is not None else []
    return max((row["delta_version"] for row in rows if row["table_name"] == table), default=-1)


def _merged_version(lake: Lake, pipeline: str, name: str) -> int:
    """Returns the bronze version up to which a live table of latest rows is complete; 0 before its first commit."""
    key = paths.table(pipeline, name)
    table = lake.open(key)
    commits = [] if table is None else commit_history(lake, key, newest=table.version(), limit=_MAX_COMMITS)
    merges = (commit.metadata for commit in commits if commit.metadata.get("operation") == "keyed_merge")
    return max((int(merge["step_version"]) + 1 for merge in merges), default=0)
