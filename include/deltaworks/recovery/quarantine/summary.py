"""Recounts a pipeline's open quarantined rows for the console after an operation has read or removed some."""

from __future__ import annotations

from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.summaries.base import log_failures, read_summary, write_summary
from deltaworks.control.summaries.quarantine import QuarantineSummary, recount
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_MAX_ATTEMPTS = 3


def recount_quarantine(storage: StorageSpec, pipeline: str) -> None:
    """Writes the quarantine summary from the complete table. Failures are logged and not raised.

    Safe while the stream adds rows to the summary: after a concurrent write the table is counted again.
    """
    with log_failures(f"The summary of the quarantine of {pipeline}"):
        home, key = PipelineHome.open(storage, pipeline), quarantine_summary(pipeline)
        for _ in range(_MAX_ATTEMPTS):
            before, etag = read_summary(QuarantineSummary, home.objects, key)
            generation = home.generations.current()
            quarantine = Quarantine(Lake(storage), pipeline)
            last = quarantine.last_batch()
            if before is not None and before.generation == generation:
                # All rows of the batch were removed.
                last = max(last, before.through_batch)
            counts = quarantine.counts(QuarantineFilter(), by_field=True)
            summary = recount(pipeline, counts, generation=generation, through_batch=last, at=utc_now())
            if write_summary(home.objects, key, summary, etag=etag):
                return
