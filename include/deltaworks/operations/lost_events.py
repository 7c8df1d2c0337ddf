"""Finds events that a collector acknowledged and that the lake does not have."""

from __future__ import annotations

from pydantic import Field

from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options


class LostEventsOptions(Options):
    """Options of the search for lost events."""

    accept: bool = Field(default=False, description="Write off the missing events; they are not reported again.")


def find(context: OperationContext, options: LostEventsOptions) -> Report:
    """Compares the sequence numbers that a pipeline's collectors assigned with those in the lake, up to an hour ago.

    Missing numbers are recorded for the health check, which alerts (EVENTS_LOST). Idempotent; safe at any time.
    """
    from deltaworks.control.objects import open_objects
    from deltaworks.maintenance.lost_events import find_lost_events

    catalog = context.catalog
    objects = open_objects(catalog.environment.lake)
    collectors = [
        name
        for name, spec in catalog.collectors.items()
        if any(source.pipeline == context.subject for source in spec.sources.values())
    ]
    losses = [find_lost_events(catalog, objects, name, accept_losses=options.accept) for name in collectors]
    parts = [] if losses else [f"No collector feeds {context.subject}."]
    for item in losses:
        if item.unverifiable_pipelines:
            parts.append(
                f"{item.collector}: whether events are lost cannot be said: no catch-all table of "
                f"{', '.join(item.unverifiable_pipelines)} has columns of _collector.collector and _collector.seq."
            )
            continue
        lost = sum(missing.events for missing in item.missing)
        parts.append(f"{item.collector}: {item.events:,} numbers looked for, {lost:,} of them are nowhere.")
        parts += [f"  {missing.id}: {missing.first} to {missing.last}" for missing in item.missing]
    return Report(parts=parts, results=losses)
