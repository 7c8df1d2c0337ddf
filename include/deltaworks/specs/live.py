"""A live table of a pipeline: what it counts, and how long it waits for what comes late."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.specs.base import Name, Spec
from deltaworks.specs.effects import NEXT_START, Edit, Effect

_LIVE_STATE = Edit(
    Effect.NEW_GENERATION,
    "The state of the running aggregation does not fit. Give the live table a new name: it counts from the beginning; "
    "or recreate all tables: `deltaworks stop {pipeline}`, `deltaworks pipelines start-over {pipeline}`.",
)


class LiveTableSpec(Spec):
    """A gold table that is a streaming aggregation: counts per window and group."""

    name: Annotated[Name, _LIVE_STATE]
    reads: Annotated[Name, _LIVE_STATE]
    window_minutes: Annotated[int, _LIVE_STATE] = Field(default=60, ge=1)
    watermark_minutes: Annotated[int, NEXT_START] = Field(default=180, ge=1)
    group_by: Annotated[tuple[str, ...], _LIVE_STATE] = ()
    trigger_seconds: Annotated[float, NEXT_START] = Field(default=60, gt=0)
