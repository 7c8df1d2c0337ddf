"""Silences alerts whose cause is known for a limited time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional


class SilenceOptions(Options):
    """Options of a silence."""

    cause: Annotated[str, Positional()] = Field(description="The alert, such as GOLD_STALE.")
    subject: str = Field("*", description="Only subjects that match this glob, such as games.daily; by default all.")
    hours: float = Field(1.0, gt=0, le=168, description="Duration in hours, at most seven days.")
    reason: str | None = Field(None, description="The reason, shown with the alert.")
    by: str | None = Field(None, description="Author; by default the user who runs the command.")
    end: bool = Field(False, description="End matching silences now; notifications of open alerts are sent.")


def silence(context: OperationContext, options: SilenceOptions) -> Report:
    """Starts a silence, or ends the silences of the same cause and subject.

    Each call starts another silence. Ending is idempotent.

    Raises:
        ConfigError: SILENCE_INVALID.
    """
    import getpass

    from deltaworks.alerts.silences import create_silence, end_silences
    from deltaworks.control.objects import open_objects

    objects = open_objects(context.catalog.environment.lake)
    if options.end:
        ended = end_silences(objects, pipeline=context.subject, cause=options.cause, subject=options.subject)
        return Report(parts=[f"{len(ended)} silences of {options.cause} were ended."])
    begun = create_silence(
        objects,
        pipeline=context.subject,
        cause=options.cause,
        subject=options.subject,
        hours=options.hours,
        reason=options.reason or "",
        by=options.by or context.run_id or getpass.getuser(),
    )
    return Report(
        parts=[
            f"No notifications of {begun.cause} for {begun.subject} of {begun.pipeline} until {begun.until}. "
            "The alert stays open; if it is still open then, you are notified immediately."
        ]
    )
