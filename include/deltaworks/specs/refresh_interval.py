"""Refresh intervals of tables, derived from triggers and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec


def refresh_seconds(pipeline: PipelineSpec, table: str) -> float:
    """Returns how often a table is refreshed, in seconds; 0 if unknown."""
    for gold in pipeline.gold.tables:
        if gold.name == table:
            if gold.refresh_seconds is not None:
                return gold.refresh_seconds
            return _schedule_seconds(pipeline.gold.schedule) if pipeline.gold.schedule is not None else 0
    for live in pipeline.live:
        if live.name == table:
            return live.trigger_seconds
    landed = any(table == bronze.name for bronze in pipeline.tables)
    keyed = any(table == other.name for other in pipeline.keyed_tables)
    return pipeline.stream.trigger_seconds if landed or keyed else 0


def _schedule_seconds(schedule: str) -> float:
    """Returns the interval of a cron schedule in seconds: of `*` and `*/n` minutes exactly, otherwise an hour
    or a day."""
    minute, _, rest = schedule.partition(" ")
    if rest.split() != ["*"] * 4:
        return 86_400 if schedule != "@hourly" else 3_600
    if minute == "*":
        return 60
    head, _, step = minute.partition("/")
    return 60 * int(step) if head == "*" and step.isdigit() else 3_600
