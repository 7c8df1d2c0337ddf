"""Spec of table maintenance: schedule, time budgets, file sizes and retention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Bytes, Spec, parse_bytes
from deltaworks.specs.schedules import Schedule
from deltaworks.specs.spec_change_effects import IMMEDIATE, NEXT_MAINTENANCE, Edit, Effect

#: From this size on, Z-order lets queries skip enough of a partition to be worth rewriting it.
DEFAULT_ZORDER_FROM_BYTES = 8 << 20
#: The retention that tables are created with by default.
DEFAULT_RETENTION_HOURS = 168
#: Which machine does the work of nightly maintenance. `spark`: submitted jobs. `auto`: looks first without a JVM, and
#: submits a job where there is work. `process`: processes without Spark, and jobs only for what needs Spark.
MaintenanceEngine = Literal["spark", "auto", "process"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_RETENTION = Edit(
    Effect.SAFE,
    "Applies from the next VACUUM. It skips tables with a shorter delta.deletedFileRetentionDuration: set that "
    "property while nothing writes.",
)


class MaintenanceSpec(Spec):
    """Settings of the maintenance of the pipeline's tables."""

    schedule: Annotated[Schedule | None, IMMEDIATE] = None
    optimize: Annotated[bool, NEXT_MAINTENANCE] = True
    optimize_minutes: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=60, ge=1, le=600, description="time budget of OPTIMIZE per night"
    )
    weekly_day: Annotated[Weekday | None, NEXT_MAINTENANCE] = Field(
        default="sunday", description="weekday with a second round for remaining partitions"
    )
    weekly_minutes: Annotated[int, NEXT_MAINTENANCE] = Field(
        default=120, ge=1, le=600, description="time budget of the second round"
    )
    closed_after_hours: Annotated[float, NEXT_MAINTENANCE] = Field(
        default=3, ge=0, description="hours without writes after which a partition is Z-ordered"
    )
    target_file_bytes: Annotated[Bytes, NEXT_MAINTENANCE] = Field(
        default=256 << 20, ge=32 << 20, description="target file size of OPTIMIZE"
    )
    zorder_from_bytes: Annotated[int, BeforeValidator(parse_bytes), NEXT_MAINTENANCE] = Field(
        default=DEFAULT_ZORDER_FROM_BYTES,
        ge=0,
        description="size of a partition from which it is Z-ordered; smaller ones are only compacted",
    )
    vacuum_retention_hours: Annotated[int, _RETENTION] = Field(
        default=DEFAULT_RETENTION_HOURS, ge=168, le=720, description="retention of tombstoned files"
    )
    time_travel_hours: Annotated[int, _RETENTION] = Field(default=0, ge=0, le=720, description="minimum time travel")
    vacuum_dry_run: Annotated[bool, NEXT_MAINTENANCE] = Field(
        default=False, description="true: only count the files that would be deleted"
    )
    max_removed_share: Annotated[float, NEXT_MAINTENANCE] = Field(
        default=0.75, gt=0, le=1, description="maximum fraction of a table that one night deletes without approval"
    )

    @property
    def file_retention_hours(self) -> int:
        """How long tombstoned files are kept: the larger of VACUUM retention and time travel."""
        return max(self.vacuum_retention_hours, self.time_travel_hours)

    def table_properties(self) -> dict[str, str]:
        """Returns the Delta table properties for this retention. They are set when a table is created.

        Changing them later requires ALTER TABLE while no job writes, because concurrent writers would fail and retry.
        """
        if self.file_retention_hours == DEFAULT_RETENTION_HOURS:
            return {}
        return {"delta.deletedFileRetentionDuration": f"interval {self.file_retention_hours} hours"}
