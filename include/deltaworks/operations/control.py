"""Lets a person control a running pipeline: stop, start and restart its processes, note changes, silence alerts.

The commands `deltaworks stop`, `start`, `restart` and `tables unpin` do the same and need the keys of the lake. The DAG
needs only a login to Airflow, whose audit log records the person. Notes on changes explain later changes of metrics. An
alert whose cause is known is silenced for a limited time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from deltaworks.control.provenance import current_person, system_user
from deltaworks.errors import ConfigError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional
from deltaworks.specs.dag_ids import dag_id

RunVerb = Literal["stop", "start", "restart"]
ControlVerb = Literal["stop", "start", "restart", "unpin"]
_WAIT = Field(180.0, ge=0, le=3000, description="Seconds to wait for the job to end.")
_REASON = Field(None, description="The reason; stored with the request.")


class ControlOptions(Options):
    """Options of a control action on a pipeline."""

    verb: Annotated[ControlVerb, Positional()] = Field(
        description="Stop, start or restart the stream or the feeds; unpin versions that a reader claims."
    )
    target: str | None = Field(
        None,
        description="Empty for the stream, feeds for the pipeline's feeds. For unpin: TABLE/READER.",
    )
    reason: str | None = _REASON
    wait_seconds: float = _WAIT


class RelayControlOptions(Options):
    """Options of a control action on a relay."""

    verb: Annotated[RunVerb, Positional()] = Field(description="Stop, start or restart the relay.")
    reason: str | None = _REASON
    wait_seconds: float = _WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """The executed action with its target, person and reason."""

    verb: str
    target: str
    by: str
    reason: str


def control(context: OperationContext, options: ControlOptions) -> Report:
    """Runs a control action. All actions are idempotent and safe to run at any time.

    Raises:
        ConfigError: CONTROL_TARGET_INVALID.
        TransientError: STREAM_STILL_RUNNING, or Airflow's error for a pause; the stop flag stays set.
    """
    return _HANDLERS[options.verb](context, options)


def control_relay(context: OperationContext, options: RelayControlOptions) -> Report:
    """Stops, starts or restarts a relay. Idempotent.

    Raises:
        TransientError: STREAM_STILL_RUNNING, or the error of Airflow if the DAG cannot be paused; the stop flag stays
            set.
    """
    return _run_verb(
        context, context.subject, options.verb, reason=options.reason or "", wait_seconds=options.wait_seconds
    )


def _control_job(context: OperationContext, options: ControlOptions) -> Report:
    pipeline = context.subject
    job_names = {"": pipeline, "stream": pipeline}
    if context.catalog.pipeline(pipeline).feeds:
        job_names["feeds"] = dag_id(pipeline, "feeds")
    name = job_names.get(options.target or "")
    if name is None:
        raise _target_invalid(context, options, f"{pipeline} runs: {', '.join(filter(None, job_names))}")
    return _run_verb(
        context,
        name,
        options.verb,
        reason=options.reason or "",
        wait_seconds=options.wait_seconds,
    )


def _run_verb(context: OperationContext, name: str, verb: str, *, reason: str, wait_seconds: float) -> Report:
    from deltaworks.airflow_client.api import airflow_client
    from deltaworks.operations.continuous_jobs import continuous_job, restart_job, start_job, stop_job

    by = current_person()
    job = continuous_job(context.catalog, name, is_start=verb != "stop")
    connect = functools.partial(airflow_client, context.catalog.environment)
    if verb == "start":
        start_job(job, connect=connect, echo=context.echo)
    else:
        end_job = stop_job if verb == "stop" else restart_job
        stop_reason = reason or f"manual {verb}"
        end_job(job, by=by, reason=stop_reason, wait_seconds=wait_seconds, connect=connect, echo=context.echo)
    result = ControlResult(verb=verb, target=name, by=by, reason=reason)
    return Report(parts=[f"{name}: {verb} is complete (by {by})."], results=[result])


def _unpin(context: OperationContext, options: ControlOptions) -> Report:
    from deltaworks.control.home import PipelineHome

    readers = PipelineHome.open(context.catalog.environment.lake, context.subject).readers
    claims = {f"{claim.table}/{claim.reader}": claim for claim in readers.read()}
    claim = claims.get(options.target or "")
    if claim is None:
        raise _target_invalid(context, options, f"readers claim: {', '.join(sorted(claims)) or 'nothing'}")
    readers.unpin(claim.table, reader=claim.reader)
    message = f"{claim.reader} no longer claims version {claim.version} of {context.subject}.{claim.table}."
    target = f"{context.subject}.{options.target}"
    result = ControlResult(verb=options.verb, target=target, by=current_person(), reason=options.reason or "")
    return Report(parts=[message], results=[result])


_HANDLERS: Mapping[str, Callable[[OperationContext, ControlOptions], Report]] = {
    "stop": _control_job,
    "start": _control_job,
    "restart": _control_job,
    "unpin": _unpin,
}


def _target_invalid(context: OperationContext, options: ControlOptions, available: str) -> ConfigError:
    return ConfigError(
        "CONTROL_TARGET_INVALID", f"{context.subject} has no {options.target!r} to {options.verb}: {available}."
    )


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
    from deltaworks.control.clock import parse_iso
    from deltaworks.control.objects import open_objects
    from deltaworks.rules import annotations

    spec = context.catalog.pipeline(context.subject)
    try:
        at = parse_iso(options.at)
    except ValueError:
        raise _invalid(f"{options.at!r} is not a date or time.") from None
    if not options.text.strip():
        raise _invalid("The note has no text.")
    by = options.by or ("" if context.run_id else system_user())
    objects = open_objects(context.catalog.environment.lake)
    note = annotations.annotate(objects, spec.pipeline, options.text, at=at, author=by)
    return Report(parts=[f"{spec.pipeline}: {note.line}"])


def _invalid(message: str) -> ConfigError:
    return ConfigError("ANNOTATION_INVALID", message)


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
        by=options.by or context.run_id or system_user(),
    )
    return Report(
        parts=[
            f"No notifications of {begun.cause} for {begun.subject} of {begun.pipeline} until {begun.until}. "
            "The alert stays open; if it is still open then, you are notified immediately."
        ]
    )
