"""How a pipeline's stream is watched: which silence, which age and how much time left are told, and what is done."""

from __future__ import annotations

from pydantic import Field

from deltaworks.specs.base import Spec


class WatchSpec(Spec):
    """Bounds of the health check. What is not declared follows from the source, or from what is usual."""

    backlog_minutes: float = Field(default=60, gt=0, description="what waits for longer is told")
    no_input_minutes: float | None = Field(
        default=None, gt=0, description="a silence that lasts longer is told; without it, one that is not usual"
    )
    retention_hours: float | None = Field(
        default=None, gt=0, description="what the source keeps, where it does not say so itself"
    )
    time_left_hours: float | None = Field(
        default=None, gt=0, description="told where less is left of it; without it a quarter of the retention"
    )
    stale_seconds: float = Field(
        default=120, ge=20, description="a heartbeat that is older says that the stream hangs or is gone"
    )
    start_seconds: float = Field(
        default=180, ge=20, description="a start that takes no longer is not held against the stream"
    )
    restarts_per_hour: int = Field(
        default=3, ge=0, description="how often a hung stream is started anew; 0 leaves it to people"
    )
