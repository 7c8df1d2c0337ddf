"""`deltaworks stop` and `start`: end a stream between batches and let it go on.

Both halves matter. The stop flag ends the running job cleanly; pausing the DAG keeps `@continuous` from starting the
next one at once.
"""

from __future__ import annotations

import getpass
import time

import typer

from deltaworks.cli.context import catalog, console
from deltaworks.control import paths
from deltaworks.control.heartbeat import read_heartbeat
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.stop import StopFlag
from deltaworks.errors import TransientError
from deltaworks.local import stack
from deltaworks.local.airflow_api import AirflowApi

_ENDED = ("ended", "failed")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(stop)
    app.command()(start)


def stop(
    pipeline: str,
    reason: str = typer.Option("stopped by hand", help="Kept in the stop flag for whoever finds the stream stopped."),
    wait_seconds: float = typer.Option(180.0, help="How long to wait for the stream to end."),
) -> None:
    """Stop a pipeline's stream after the batch under way, and keep it stopped."""
    objects = _objects(pipeline)
    with _airflow() as airflow:
        airflow.pause(f"stream__{pipeline}")
    _flag(objects, pipeline).set(by=getpass.getuser(), reason=reason)
    console.print(f"Asked {pipeline} to stop; waiting for its job to end.")
    _wait_until_ended(objects, pipeline, wait_seconds)
    console.print(f"{pipeline} is stopped. `deltaworks start {pipeline}` lets it go on where it was.")


def start(pipeline: str) -> None:
    """Let a stopped stream go on where it was."""
    objects = _objects(pipeline)
    _flag(objects, pipeline).clear()
    with _airflow() as airflow:
        airflow.unpause(f"stream__{pipeline}")
    console.print(f"{pipeline} may run again; Airflow starts it within seconds.")


def _objects(pipeline: str) -> ObjectStore:
    project = catalog()
    project.pipeline(pipeline)
    return open_objects(project.environment.lake)


def _flag(objects: ObjectStore, pipeline: str) -> StopFlag:
    return StopFlag(objects, paths.pipeline_control(pipeline, "stop.json"))


def _airflow() -> AirflowApi:
    found = stack.status()
    if found.addresses is None:
        raise TransientError(
            "STACK_NOT_RUNNING", "The embedded stack is not running.", hint="Start it with `deltaworks up`."
        )
    return found.addresses.airflow_api()


def _wait_until_ended(objects: ObjectStore, pipeline: str, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        beat = read_heartbeat(objects, paths.pipeline_control(pipeline, "heartbeat.json"))
        if beat is None or beat.state in _ENDED:
            return
        if time.monotonic() > deadline:
            raise TransientError(
                "STREAM_STILL_RUNNING",
                f"{pipeline} is still {beat.state} after {wait_seconds:.0f} s (process {beat.pid} on {beat.host}).",
                hint="A long batch ends first; look at its driver log, or mark the task failed in Airflow.",
            )
        time.sleep(1)
