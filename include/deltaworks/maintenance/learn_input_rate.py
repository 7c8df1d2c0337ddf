"""Learns the usual input of each hour of the day from a pipeline's progress table, for the health check.

Runs once a day, reads two columns of the last four weeks, and writes one object. Needs no JVM.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.limits import MAX_DAYS, InputRate, median_input_rate, sum_by_hour, write_input_rate
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake


def learn_input_rate(catalog: Catalog, pipeline: str, *, now: datetime | None = None) -> InputRate:
    """Computes and stores the usual input of a pipeline. Idempotent; safe while the stream runs."""
    catalog.pipeline(pipeline)
    now = now or utc_now()
    since = now - timedelta(days=MAX_DAYS + 1)
    progress = Lake(catalog.environment.lake).rows(
        paths.progress(pipeline),
        columns=["at", "rows"],
        filters=(pc.field("at") >= since) & (pc.field("rows") > 0),
    )
    rows = progress.to_pylist() if progress is not None else []
    inputs = [(row["at"].astimezone(UTC), int(row["rows"])) for row in rows]
    first = min((at for at, _ in inputs), default=now)
    norm = median_input_rate(sum_by_hour(inputs), first_input_at=first, now=now)
    objects = open_objects(catalog.environment.lake)
    write_input_rate(objects, paths.input_rate(paths.pipeline_control(pipeline)), norm)
    return norm
