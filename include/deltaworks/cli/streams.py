"""`deltaworks stop`, `start` and `restart`: control a stream, relay or group."""

from __future__ import annotations

import functools

import typer

from deltaworks.airflow_client.api import airflow_client
from deltaworks.cli.context import StreamArgument, catalog
from deltaworks.cli.output import print_line
from deltaworks.control.provenance import system_user
from deltaworks.operations.continuous_jobs import (
    Connect,
    ContinuousJob,
    continuous_job,
    group_job,
    restart_job,
    start_job,
    stop_job,
)

GROUP_OPTION = typer.Option("", help="A stream group, instead of a name: its driver and all its pipelines.")
WAIT_OPTION = typer.Option(180.0, help="Seconds to wait for the stream to end.")


def stop(
    name: StreamArgument = "",
    reason: str = typer.Option("stopped by hand", help="Reason, stored in the stop flag."),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """Stop a stream, relay or group after its current batch, and keep it stopped."""
    job, connect = _select_job(name, group, to_start=False)
    stop_job(job, by=system_user(), reason=reason, wait_seconds=wait_seconds, connect=connect, echo=print_line)


def start(name: StreamArgument = "", group: str = GROUP_OPTION) -> None:
    """Start a stopped stream, relay or group where it left off, or retry a failing one now."""
    job, connect = _select_job(name, group, to_start=True)
    start_job(job, connect=connect, echo=print_line)


def restart(
    name: StreamArgument = "",
    reason: str = typer.Option(
        "restarted by hand", help=("Reason, stored in the stop flag until the stream has ended.")
    ),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """Restart a stream, relay or group after its current batch, with its current spec."""
    job, connect = _select_job(name, group, to_start=True)
    restart_job(job, by=system_user(), reason=reason, wait_seconds=wait_seconds, connect=connect, echo=print_line)


def _select_job(name: str, group: str, *, to_start: bool) -> tuple[ContinuousJob, Connect]:
    """Returns the named stream, relay, group or other process, and a function that connects to its Airflow.

    Raises:
        ConfigError: GROUP_UNKNOWN, PIPELINE_UNKNOWN, or an invalid spec.
        TransientError: STORAGE_UNREACHABLE.
        typer.BadParameter: both name and group are given, or neither.
    """
    project = catalog()
    if bool(name) == bool(group):
        raise typer.BadParameter(
            "pass a pipeline, a relay or the DAG of a long-running process, or --group with a stream group"
        )
    job = group_job(project, group) if group else continuous_job(project, name, is_start=to_start)
    return job, functools.partial(airflow_client, project.environment)
