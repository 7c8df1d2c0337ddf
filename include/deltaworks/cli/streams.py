"""`deltaworks stop`, `start` and `restart`: end a stream, a relay or a group between batches, and let it continue."""

from __future__ import annotations

import functools
import getpass

import typer

from deltaworks.cli.completion import StreamArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_line
from deltaworks.operations.airflow_api import airflow_client
from deltaworks.operations.continuous_jobs import (
    Connect,
    ContinuousJob,
    continuous_job,
    group_job,
    restart_job,
    start_job,
    stop_job,
)

GROUP_OPTION = typer.Option("", help="A group of streams, in place of a name: its driver and all of its pipelines.")
WAIT_OPTION = typer.Option(180.0, help="How long to wait for the stream to end.")


def stop(
    name: StreamArgument = "",
    reason: str = typer.Option("stopped by hand", help="Kept in the stop flag for whoever finds the stream stopped."),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """Stop a pipeline's stream, a relay or a group, after the batch under way, and keep it stopped."""
    job, connect = _select_job(name, group, to_start=False)
    stop_job(job, by=getpass.getuser(), reason=reason, wait_seconds=wait_seconds, connect=connect, echo=print_line)


def start(name: StreamArgument = "", group: str = GROUP_OPTION) -> None:
    """Let what was stopped continue where it ended, or call off the wait of a stream that keeps failing."""
    job, connect = _select_job(name, group, to_start=True)
    start_job(job, connect=connect, echo=print_line)


def restart(
    name: StreamArgument = "",
    reason: str = typer.Option("restarted by hand", help="Kept in the stop flag until the stream has ended."),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """End a stream, a relay or a group after the batch under way, and let it run again as it is declared now."""
    job, connect = _select_job(name, group, to_start=True)
    restart_job(job, by=getpass.getuser(), reason=reason, wait_seconds=wait_seconds, connect=connect, echo=print_line)


def _select_job(name: str, group: str, *, to_start: bool) -> tuple[ContinuousJob, Connect]:
    """What is named, one of a pipeline, a relay and a group, and the way to the Airflow that runs it.

    Raises:
        ConfigError: GROUP_UNKNOWN, PIPELINE_UNKNOWN, or what is wrong with a declaration.
        TransientError: STORAGE_UNREACHABLE.
        typer.BadParameter: both are given, or neither.
    """
    project = catalog()
    if bool(name) == bool(group):
        raise typer.BadParameter(
            "give the name of a pipeline, a relay or a DAG without end, or --group with that of a group"
        )
    job = group_job(project, group) if group else continuous_job(project, name, is_start=to_start)
    return job, functools.partial(airflow_client, project.environment)
