"""`deltaworks stop`, `start` and `restart`: control a stream, relay or group."""

from __future__ import annotations

import functools

import typer

from deltaworks.airflow_client.api import airflow_client
from deltaworks.cli.context import StreamArgument, catalog
from deltaworks.cli.output import print_document, print_line
from deltaworks.control.provenance import system_user
from deltaworks.errors import ConfigError
from deltaworks.operations.continuous_jobs import (
    Connect,
    ContinuousJob,
    continuous_job,
    group_job,
    restart_job,
    start_job,
    stop_job,
)
from deltaworks.specs.dag_ids import split_dag_id

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


def logs(
    name: StreamArgument,
    lines: int = typer.Option(100, min=1, help="Number of lines, from the end."),
    task: str = typer.Option("", help="Only this task of the run; by default the one that is running or ran last."),
) -> None:
    """Print the log of the newest run of a stream, relay or DAG."""
    project = catalog(required_service=None)
    dag = name if split_dag_id(name)[1] else continuous_job(project, name, is_start=False).dag_id
    airflow = airflow_client(project.environment)
    run = next(iter(airflow.dag_runs(dag, limit=1)), None)
    if run is None:
        raise ConfigError("LOG_MISSING", f"{dag} has no run yet.")
    started = [
        (item.state == "running", item.start, item)
        for item in airflow.task_instances(dag, run.run_id)
        if item.start is not None and task in ("", item.task_id)
    ]
    newest = max(started, key=lambda entry: entry[:2])[2] if started else None
    text = airflow.task_log(dag, run.run_id, newest.task_id, newest.try_number) if newest is not None else ()
    if newest is None or not text:
        named = f" of task {task!r}" if task else ""
        raise ConfigError("LOG_MISSING", f"Run {run.run_id} of {dag} has no log{named}: it is {run.state}.")
    print_line(f"{dag} {run.run_id}, task {newest.task_id}, try {newest.try_number}:", error=True)
    for line in text[-lines:]:
        print_document(line)
