"""What a live table looks like on disk: its columns, its partitioning, and how it comes to be. No Spark is needed."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import LiveTableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake

LIVE_PARTITION = ("window_date",)


def live_columns(spec: PipelineSpec, live: LiveTableSpec) -> dict[str, str]:
    """Types by column, in the order of the table."""
    types = spec.table(live.reads).column_types()
    window = {"window_start": "timestamp", "window_end": "timestamp", "window_date": "date"}
    groups = {name: types[name] for name in live.group_by}
    return window | groups | {"events": "long", "updated_at": "timestamp"}


def ensure_live_table(lake: Lake, spec: PipelineSpec, live: LiveTableSpec) -> str:
    """Create the live table where there is none; its key."""
    key = paths.table(spec.pipeline, live.name)
    lake.ensure(
        key,
        arrow_schema(live_columns(spec, live)),
        user_metadata=user_metadata(pipeline=spec.pipeline, batch="create", operation="create_table"),
        partition_by=LIVE_PARTITION,
        properties=spec.maintenance.table_properties(),
    )
    return key
