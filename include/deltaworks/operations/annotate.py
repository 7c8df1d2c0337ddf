"""Adds notes to a pipeline: what was changed and when, to explain later changes of metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional


class AnnotateOptions(Options):
    """Options of a note."""

    text: Annotated[str, Positional()] = Field(description="What was changed.")
    at: str | None = Field(None, description="A date or time in UTC; by default now.")
    by: str | None = Field(None, description="Author; by default the user who runs the command.")


def annotate(context: OperationContext, options: AnnotateOptions) -> Report:
    """Adds a note to the pipeline. Idempotent for the same text and time.

    Raises:
        ConfigError: ANNOTATION_INVALID.
    """
    import getpass

    from deltaworks.control.clock import parse_iso
    from deltaworks.control.objects import open_objects
    from deltaworks.rules.annotations import annotate as keep

    spec = context.catalog.pipeline(context.subject)
    try:
        at = parse_iso(options.at)
    except ValueError:
        raise _invalid(f"{options.at!r} is not a date or time.") from None
    if not options.text.strip():
        raise _invalid("The note has no text.")
    by = options.by or ("" if context.run_id else getpass.getuser())
    note = keep(open_objects(context.catalog.environment.lake), spec.pipeline, options.text, at=at, author=by)
    return Report(parts=[f"{spec.pipeline}: {note.line}"])


def _invalid(message: str) -> ConfigError:
    return ConfigError("ANNOTATION_INVALID", message)
