"""`deltaworks stop` and `start`: end a stream or a relay between batches and let it continue.

Both halves matter. The stop flag ends the running job cleanly; pausing the DAG keeps `@continuous` from starting the
next one at once. The DAG of a group is paused for the whole group alone: a member that is stopped is left alone by its
driver, while the others go on.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass

import typer

from deltaworks.cli.completion import StreamArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.output import line
from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.groups import group_backoff, group_stop_flag
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import TransientError
from deltaworks.operations.airflow_api import airflow_from_environment
from deltaworks.specs.groups import group_of, stream_dag_id, stream_group

_ENDED = ("ended", "failed")
GROUP_OPTION = typer.Option("", help="A group of streams, in place of a name: its driver and all of its pipelines.")


def stop(
    name: StreamArgument = "",
    reason: str = typer.Option("stopped by hand", help="Kept in the stop flag for whoever finds the stream stopped."),
    wait_seconds: float = typer.Option(180.0, help="How long to wait for the stream to end."),
    group: str = GROUP_OPTION,
) -> None:
    """Stop a pipeline's stream, a relay or a group, after the batch under way, and keep it stopped."""
    job = _chosen(name, group, to_start=False)
    if not job.group:
        with airflow_from_environment() as airflow:
            airflow.pause(job.dag_id)
    job.flag.set(by=getpass.getuser(), reason=reason)
    line(f"Asked {job.name} to stop; waiting for its job to end.")
    for key in job.heartbeats:
        _wait_until_ended(job, key, wait_seconds)
    again = f"--group {group}" if group else name
    line(f"{job.name} is stopped. `deltaworks start {again}` lets it continue where it ended.")


def start(name: StreamArgument = "", group: str = GROUP_OPTION) -> None:
    """Let what was stopped continue where it ended, or call off the wait of a stream that keeps failing."""
    job = _chosen(name, group, to_start=True)
    job.flag.clear()
    for backoff in job.backoffs:
        backoff.reset()
    if job.group and group_stop_flag(job.objects, job.group).read() is not None:
        line(f"{name} may run again once its group does: `deltaworks start --group {job.group}`.")
        return
    with airflow_from_environment() as airflow:
        airflow.unpause(job.dag_id)
    who = f"the driver of its group {job.group}" if job.group else "Airflow"
    line(f"{job.name} may run again; {who} starts it within seconds.")


@dataclass(frozen=True, slots=True)
class _Endless:
    """A stream, a relay or a group: its DAG, its stop flag, its back-offs and where its heartbeats are.

    `group` is the group that a pipeline is a member of: its DAG is not paused for one.
    """

    name: str
    dag_id: str
    objects: ObjectStore
    flag: StopFlag
    backoffs: tuple[RestartBackoff, ...]
    heartbeats: tuple[str, ...]
    group: str = ""


def _chosen(name: str, group: str, *, to_start: bool) -> _Endless:
    """What is named: one of a pipeline, a relay and a group.

    Raises:
        ConfigError: GROUP_UNKNOWN, PIPELINE_UNKNOWN, or what is wrong with a declaration.
    """
    if bool(name) == bool(group):
        raise typer.BadParameter("give the name of a pipeline or a relay, or --group with that of a group")
    return _whole_group(group) if group else _endless(name, to_start=to_start)


def _whole_group(name: str) -> _Endless:
    project = catalog()
    declared = stream_group(project, name)
    objects = open_objects(project.environment.lake)
    folders = [paths.pipeline_control(pipeline) for pipeline in (*declared.members, *declared.wrong)]
    backoffs = [RestartBackoff(objects, f"{folder}/failures.json") for folder in folders]
    return _Endless(
        f"the group {name}",
        declared.dag_id,
        objects,
        group_stop_flag(objects, name),
        (group_backoff(objects, name), *backoffs),
        tuple(map(paths.heartbeat, folders)),
    )


def _endless(name: str, *, to_start: bool) -> _Endless:
    """A stream or a relay by name. One whose declaration is wrong can be stopped, but not started.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, or what is wrong with a declaration.
    """
    project = catalog()
    objects = open_objects(project.environment.lake)
    if project.declares("relay", name) and not project.declares("pipeline", name):
        folder, dag_id, group = paths.relay_control(name), f"relay__{name}", None
        if to_start:
            project.relay(name)
    else:
        group = group_of(project, name)
        folder, dag_id = paths.pipeline_control(name), stream_dag_id(name, group)
        if to_start or not project.declares("pipeline", name):
            project.pipeline(name)
    flag, backoff = StopFlag(objects, paths.stop_request(folder)), RestartBackoff(objects, f"{folder}/failures.json")
    return _Endless(name, dag_id, objects, flag, (backoff,), (paths.heartbeat(folder),), group or "")


def _wait_until_ended(job: _Endless, key: str, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        beat = read_heartbeat(job.objects, key)
        if beat is None or beat.state in _ENDED:
            return
        if time.monotonic() > deadline:
            raise TransientError(
                "STREAM_STILL_RUNNING",
                f"{beat.pipeline} is still {beat.state} after {wait_seconds:.0f} s "
                f"(process {beat.pid} on {beat.host}).",
                hint="A long batch ends first; look at its driver log, or mark the task failed in Airflow.",
            )
        time.sleep(1)
