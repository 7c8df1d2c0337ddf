"""VACUUM of a pipeline's tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Section, TableNames

_SHORT = Section("Less than seven days")


class VacuumOptions(Options):
    """Options of VACUUM."""

    tables: Annotated[tuple[str, ...], TableNames(("bronze",))] = Field((), description="Only these tables.")
    mode: Literal["lite", "full"] | None = Field(
        None, description="lite: by the log alone; full: by listing the folder; without it by turns."
    )
    retention_hours: Annotated[int | None, _SHORT] = Field(
        None, ge=24, description="Hours that files out of use are kept; without it what the pipeline declares."
    )
    allow_below_minimum: Annotated[str | None, _SHORT] = Field(
        None, description="Why less than 168 h is to be kept; it is written into the tables' logs."
    )
    dry_run: bool = Field(True, description="Only list what would be deleted.")


def vacuum(context: OperationContext, options: VacuumOptions) -> Report:
    """Delete files that no retained version and no reader needs. Idempotent; final for versions that do."""
    from deltaworks.maintenance.vacuum import vacuum_tables

    return Report(
        results=vacuum_tables(
            context.spark(),
            context.catalog,
            context.subject,
            tables=list(options.tables) or None,
            dry_run=options.dry_run,
            retention_hours=options.retention_hours,
            below_minimum=options.allow_below_minimum or "",
            mode=options.mode,
        )
    )
