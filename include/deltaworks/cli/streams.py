"""`deltaworks stop` and `start`: end a stream or a relay between batches and let it continue.

Both halves matter. The stop flag ends the running job cleanly; pausing the DAG keeps `@continuous` from starting the
next one at once.
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
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import TransientError
from deltaworks.operations.airflow_api import airflow_from_environment

_ENDED = ("ended", "failed")


def stop(
    name: StreamArgument,
    reason: str = typer.Option("stopped by hand", help="Kept in the stop flag for whoever finds the stream stopped."),
    wait_seconds: float = typer.Option(180.0, help="How long to wait for the stream to end."),
) -> None:
    """Stop a pipeline's stream, or a relay, after the batch under way, and keep it stopped."""
    job = _endless(name, to_start=False)
    with airflow_from_environment() as airflow:
        airflow.pause(job.dag_id)
    job.flag.set(by=getpass.getuser(), reason=reason)
    line(f"Asked {name} to stop; waiting for its job to end.")
    _wait_until_ended(job, wait_seconds)
    line(f"{name} is stopped. `deltaworks start {name}` lets it continue where it ended.")


def start(name: StreamArgument) -> None:
    """Let a stopped stream or relay continue where it ended, or call off the wait of one that keeps failing."""
    job = _endless(name, to_start=True)
    job.flag.clear()
    job.backoff.reset()
    with airflow_from_environment() as airflow:
        airflow.unpause(job.dag_id)
    line(f"{name} may run again; Airflow starts it within seconds.")


@dataclass(frozen=True, slots=True)
class _Endless:
    """A stream or a relay: its DAG, its stop flag, its back-off and where its heartbeat is."""

    name: str
    dag_id: str
    objects: ObjectStore
    flag: StopFlag
    backoff: RestartBackoff
    heartbeat_key: str


def _endless(name: str, *, to_start: bool) -> _Endless:
    """A stream or a relay by name. One whose declaration is wrong can be stopped, but not started.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, or what is wrong with a declaration.
    """
    project = catalog()
    objects = open_objects(project.environment.lake)
    if project.declares("relay", name) and not project.declares("pipeline", name):
        folder, dag_id = paths.relay_control(name), f"relay__{name}"
        if to_start:
            project.relay(name)
    else:
        folder, dag_id = paths.pipeline_control(name), f"stream__{name}"
        if to_start or not project.declares("pipeline", name):
            project.pipeline(name)
    flag, backoff = StopFlag(objects, paths.stop_request(folder)), RestartBackoff(objects, f"{folder}/failures.json")
    return _Endless(name, dag_id, objects, flag, backoff, paths.heartbeat(folder))


def _wait_until_ended(job: _Endless, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        beat = read_heartbeat(job.objects, job.heartbeat_key)
        if beat is None or beat.state in _ENDED:
            return
        if time.monotonic() > deadline:
            raise TransientError(
                "STREAM_STILL_RUNNING",
                f"{job.name} is still {beat.state} after {wait_seconds:.0f} s (process {beat.pid} on {beat.host}).",
                hint="A long batch ends first; look at its driver log, or mark the task failed in Airflow.",
            )
        time.sleep(1)
