"""`deltaworks stop`, `start` and `restart`: end a stream, a relay or a group between batches, and let it continue."""

from __future__ import annotations

import functools
import getpass
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.completion import StreamArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.output import line
from deltaworks.operations.airflow_api import airflow_of
from deltaworks.operations.endless_jobs import EndlessJob, endless_job, group_job, restart_job, start_job, stop_job

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

GROUP_OPTION = typer.Option("", help="A group of streams, in place of a name: its driver and all of its pipelines.")
WAIT_OPTION = typer.Option(180.0, help="How long to wait for the stream to end.")


def stop(
    name: StreamArgument = "",
    reason: str = typer.Option("stopped by hand", help="Kept in the stop flag for whoever finds the stream stopped."),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """Stop a pipeline's stream, a relay or a group, after the batch under way, and keep it stopped."""
    project = catalog()
    job = _chosen(project, name, group, to_start=False)
    connect = functools.partial(airflow_of, project.environment)
    stop_job(job, by=getpass.getuser(), reason=reason, wait_seconds=wait_seconds, connect=connect, say=line)


def start(name: StreamArgument = "", group: str = GROUP_OPTION) -> None:
    """Let what was stopped continue where it ended, or call off the wait of a stream that keeps failing."""
    project = catalog()
    job = _chosen(project, name, group, to_start=True)
    start_job(job, connect=functools.partial(airflow_of, project.environment), say=line)


def restart(
    name: StreamArgument = "",
    reason: str = typer.Option("restarted by hand", help="Kept in the stop flag until the stream has ended."),
    wait_seconds: float = WAIT_OPTION,
    group: str = GROUP_OPTION,
) -> None:
    """End a stream, a relay or a group after the batch under way, and let it run again as it is declared now."""
    project = catalog()
    job = _chosen(project, name, group, to_start=True)
    connect = functools.partial(airflow_of, project.environment)
    restart_job(job, by=getpass.getuser(), reason=reason, wait_seconds=wait_seconds, connect=connect, say=line)


def _chosen(project: Catalog, name: str, group: str, *, to_start: bool) -> EndlessJob:
    """What is named: one of a pipeline, a relay and a group.

    Raises:
        ConfigError: GROUP_UNKNOWN, PIPELINE_UNKNOWN, or what is wrong with a declaration.
        typer.BadParameter: both are given, or neither.
    """
    if bool(name) == bool(group):
        raise typer.BadParameter("give the name of a pipeline or a relay, or --group with that of a group")
    return group_job(project, group) if group else endless_job(project, name, to_start=to_start)
