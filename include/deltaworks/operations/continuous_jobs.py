"""Stopping, starting and restarting what runs without end: a stream, a relay, a group of streams, a light process.

Two things keep a job stopped. Its stop flag, an object in the lake, ends it between two batches and needs nothing but
the lake; its DAG, paused by Airflow's API, keeps `@continuous` from starting the next run. The flag comes first: where
Airflow is away or refuses, the job ends all the same, and runs that are started meanwhile end at once. The DAG of a
group is paused for the whole group alone: a member that is stopped is left alone by its driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from deltaworks.control import outbound_paths, paths, rule_paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.clock import utc_now
from deltaworks.control.health.groups import group_backoff, group_stop_flag
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.limits import HealthLimits, age_seconds
from deltaworks.control.health.report import limits_of
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.operations.running_tasks import RunsApi, running_task
from deltaworks.specs.catalog import find_by_name
from deltaworks.specs.groups import group_of, stream_dag_id, stream_group

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_ENDED_STATES = ("ended", "failed")
_POLL_SECONDS = 1.0


class Airflow(RunsApi, Protocol):
    """What is asked of Airflow here."""

    def pause(self, dag_id: str) -> None: ...

    def unpause(self, dag_id: str) -> None: ...


#: Opens a client; an Airflow that is declared nowhere is an error of it.
Connect = Callable[[], AbstractContextManager[Airflow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousJob:
    """A stream, a relay or a group: its DAG, its stop flag, its back-offs and where its heartbeats are.

    Args:
        name: as sentences name it; `argument` as commands do.
        dag_id: empty where Kubernetes runs it, as it does relays: its pod then waits while it is stopped.
        group: the group that a pipeline is a member of: its DAG is not paused for one.
    """

    display_name: str
    cli_argument: str
    dag_id: str
    objects: ObjectStore
    flag: StopFlag
    backoffs: tuple[RestartBackoff, ...]
    heartbeats: tuple[str, ...]
    group: str = ""
    limits: HealthLimits = field(default_factory=HealthLimits)

    @property
    def is_stalled(self) -> bool:
        """Whether its process has long said nothing and has not said that it ended: no stop flag reaches it. One of a
        group does not count, whose driver has others to run, nor one in a pod, which its probe ends."""
        if self.group or not self.dag_id or len(self.heartbeats) != 1:
            return False
        beat = read_heartbeat(self.objects, self.heartbeats[0])
        if beat is None or beat.state in _ENDED_STATES:
            return False
        return age_seconds(beat.written_at, utc_now()) > self.limits.stale_seconds(beat.trigger_seconds)

    def has_heartbeat_of(self, run: str) -> bool:
        """Whether the last heartbeat is of a try of its task, as `deltaworks.control.provenance.current_run` has it."""
        beat = read_heartbeat(self.objects, self.heartbeats[0])
        return beat is not None and beat.run == run

    @property
    def is_group_stopped(self) -> bool:
        """Whether the group it is a member of is stopped as a whole."""
        return bool(self.group) and group_stop_flag(self.objects, self.group).read() is not None

    def clear_stop(self) -> None:
        """Withdraw the stop, and the wait after failures. Idempotent."""
        self.flag.clear()
        for backoff in self.backoffs:
            backoff.reset()

    def wait_until_ended(self, *, wait_seconds: float) -> None:
        """Wait until no process of it is alive, by its heartbeats.

        Raises:
            TransientError: STREAM_STILL_RUNNING.
        """
        for key in self.heartbeats:
            deadline = time.monotonic() + wait_seconds
            while (beat := read_heartbeat(self.objects, key)) is not None and beat.state not in _ENDED_STATES:
                if time.monotonic() > deadline:
                    raise TransientError(
                        "STREAM_STILL_RUNNING",
                        f"{beat.pipeline} is still {beat.state} after {wait_seconds:.0f} s "
                        f"(process {beat.pid} on {beat.host}). Its stop flag stays set.",
                        hint="A long batch ends first; look at its driver log, or mark the task failed in Airflow. "
                        f"`deltaworks start {self.cli_argument}` withdraws the stop.",
                    )
                time.sleep(_POLL_SECONDS)


def stop_job(
    job: ContinuousJob, *, by: str, reason: str, wait_seconds: float, connect: Connect, echo: Callable[[str], None]
) -> None:
    """Set its stop flag, have Airflow pause its DAG, and wait until it has ended. Idempotent.

    Raises:
        DeltaworksError: it has ended, but its DAG is not paused, by the condition of what Airflow said or did not say;
            TransientError: STREAM_STILL_RUNNING.
    """
    job.flag.set(by=by, reason=reason)
    echo(f"Asked {job.display_name} to stop: its stop flag is set.")
    airflow_error = (
        None if job.group or not job.dag_id else _call_airflow(connect, lambda airflow: airflow.pause(job.dag_id))
    )
    if airflow_error is not None:
        echo(
            f"{job.dag_id} is not paused ({airflow_error.condition}); {job.display_name} ends by its flag all the same."
        )
    echo("Waiting for its job to end.")
    job.wait_until_ended(wait_seconds=wait_seconds)
    if airflow_error is not None:
        raise _partly_done_error(
            airflow_error,
            f"{job.display_name} has ended and stays stopped by its flag, but its DAG {job.dag_id} is not paused: unless it is "
            "already, Airflow starts runs of it that end at once.",
            f"Then `deltaworks stop {job.cli_argument}` again, or pause {job.dag_id} in Airflow by hand.",
        )
    echo(f"{job.display_name} is stopped. `deltaworks start {job.cli_argument}` lets it continue where it ended.")


def start_job(job: ContinuousJob, *, connect: Connect, echo: Callable[[str], None]) -> None:
    """Withdraw its stop flag and its wait after failures, and have Airflow unpause its DAG. Idempotent.

    Raises:
        DeltaworksError: the flag is withdrawn, but the DAG is not unpaused, by the condition of what Airflow said.
    """
    job.clear_stop()
    if job.is_group_stopped:
        echo(f"{job.display_name} may run again once its group does: `deltaworks start --group {job.group}`.")
        return
    airflow_error = (
        _call_airflow(connect, lambda airflow: _unpause_and_retry(airflow, job, echo)) if job.dag_id else None
    )
    if airflow_error is not None:
        raise _partly_done_error(
            airflow_error,
            f"The stop of {job.display_name} is withdrawn, but its DAG {job.dag_id} is not unpaused: where it is paused, "
            "nothing starts it.",
            f"Then `deltaworks start {job.cli_argument}` again, or unpause {job.dag_id} in Airflow by hand.",
        )
    starter = f"the driver of its group {job.group}" if job.group else "Airflow" if job.dag_id else "its pod"
    echo(f"{job.display_name} may run again; {starter} starts it within seconds.")


def _unpause_and_retry(airflow: Airflow, job: ContinuousJob, echo: Callable[[str], None]) -> None:
    """Unpause its DAG, and call off the wait for its next try, which Airflow keeps for minutes. That of a group is for
    all of its members, and is left."""
    airflow.unpause(job.dag_id)
    waiting = None if job.group else running_task(airflow, job.dag_id, state="up_for_retry")
    if waiting is not None:
        run, task = waiting
        airflow.clear_task(job.dag_id, run.run_id, task.task_id)
        echo(f"{job.display_name} waited for its next try: its task was cleared, which begins it now.")


def restart_job(
    job: ContinuousJob, *, by: str, reason: str, wait_seconds: float, connect: Connect, echo: Callable[[str], None]
) -> None:
    """End it between two batches and let it run again, with what is declared by then.

    Its DAG is not paused in between: a run that starts before the flag is withdrawn ends by it, and the next one stays.
    So Airflow has to be reached only for a DAG that was paused before, and for one that hangs: its task is cleared,
    which kills it.

    Raises:
        DeltaworksError: as `start_job`; TransientError: STREAM_STILL_RUNNING.
    """
    if job.is_stalled:
        _kill_stalled(job, connect=connect, echo=echo)
    else:
        job.flag.set(by=by, reason=reason)
        echo(f"Asked {job.display_name} to end; waiting for its job.")
        job.wait_until_ended(wait_seconds=wait_seconds)
    start_job(job, connect=connect, echo=echo)


def _kill_stalled(job: ContinuousJob, *, connect: Connect, echo: Callable[[str], None]) -> None:
    """Clear the task of a job that hangs. One that has only just started and has said nothing yet is the successor of
    what hung, and is left alone."""
    with connect() as airflow:
        running = running_task(airflow, job.dag_id)
        if running is None:
            echo(f"{job.display_name} has said nothing for long, and no task of it runs.")
            return
        run, task = running
        is_starting = task.start is None or (utc_now() - task.start).total_seconds() < job.limits.grace_seconds
        if is_starting and not job.has_heartbeat_of(f"{job.dag_id}/{run.run_id}/{task.task_id}/{task.try_number}"):
            echo(
                f"A task of {job.display_name} has only just started ({task.start}) in place of what hung; it is left alone."
            )
            return
        airflow.clear_task(job.dag_id, run.run_id, task.task_id)
    echo(f"{job.display_name} hangs: its task was cleared, which ends it, and its next try continues where it was.")


def continuous_job(catalog: Catalog, name: str, *, is_start: bool) -> ContinuousJob:
    """What runs without end under a name: that of its DAG, `feeds__games` or `rules`; a stream and a relay
    also under their own. One whose declaration is wrong can be stopped, but not started.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, RELAY_UNKNOWN, REMEDIATION_UNKNOWN, or what is wrong with a declaration.
    """
    objects = open_objects(catalog.environment.lake)
    kind, subject = _parse_job_name(catalog, name)
    location = _LOCATORS[kind](catalog, subject, is_start)
    argument = subject if kind == "stream" or name == subject else name
    return ContinuousJob(
        display_name=argument,
        cli_argument=argument,
        dag_id=location.dag_id,
        objects=objects,
        flag=StopFlag(objects, paths.stop_request(location.folder)),
        backoffs=(_backoff(objects, location.folder),),
        heartbeats=(paths.heartbeat(location.folder),),
        group=location.group,
        limits=limits_of(catalog.pipelines[subject])
        if kind == "stream" and subject in catalog.pipelines
        else HealthLimits(),
    )


def _parse_job_name(catalog: Catalog, name: str) -> tuple[str, str]:
    """The kind of what runs under a name, and its own name. What is declared nowhere is taken for a pipeline."""
    if catalog.declares("pipeline", name):
        return "stream", name
    if catalog.declares("relay", name):
        return "relay", name
    if name == rule_paths.RULES_DAG:
        return "rules", rule_paths.RULES_PROCESS
    kind, separator, subject = name.partition("__")
    return (kind, subject) if separator and kind in _LOCATORS else ("stream", name)


@dataclass(frozen=True, slots=True)
class _JobLocation:
    """The control folder of what runs, its DAG, empty where a pod runs it, and the group of streams it is in."""

    folder: str
    dag_id: str
    group: str = ""


def _locate_stream(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start or not catalog.declares("pipeline", name):
        catalog.pipeline(name)
    group = group_of(catalog, name)
    return _JobLocation(paths.pipeline_control(name), stream_dag_id(name, group), group or "")


def _locate_relay(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start or not catalog.declares("relay", name):
        catalog.relay(name)
    in_pod = catalog.environment.kubernetes is not None
    return _JobLocation(paths.relay_control(name), "" if in_pod else f"relay__{name}")


def _locate_rules(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    if name != rule_paths.RULES_PROCESS:
        catalog.pipeline(f"rules__{name}")
    return _JobLocation(rule_paths.rules_control(), rule_paths.RULES_DAG)


def _locate_feeds(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start or not catalog.declares("pipeline", name):
        catalog.pipeline(name)
    return _JobLocation(outbound_paths.feeds_control(name), f"feeds__{name}")


def _locate_remediation(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    find_by_name(name, {spec.name: spec for spec in catalog.environment.remediations}, "remediation")
    return _JobLocation(outbound_paths.remediation_control(name), f"remediation__{name}")


#: By the kind in the id of a DAG.
_LOCATORS: Final[dict[str, Callable[[Catalog, str, bool], _JobLocation]]] = {
    "stream": _locate_stream,
    "relay": _locate_relay,
    "rules": _locate_rules,
    "feeds": _locate_feeds,
    "remediation": _locate_remediation,
}


def group_job(catalog: Catalog, name: str) -> ContinuousJob:
    """A group of streams as a whole: its driver with all of its pipelines.

    Raises:
        ConfigError: GROUP_UNKNOWN.
    """
    declared = stream_group(catalog, name)
    objects = open_objects(catalog.environment.lake)
    folders = [paths.pipeline_control(pipeline) for pipeline in (*declared.members, *declared.invalid_members)]
    return ContinuousJob(
        display_name=f"the group {name}",
        cli_argument=f"--group {name}",
        dag_id=declared.dag_id,
        objects=objects,
        flag=group_stop_flag(objects, name),
        backoffs=(group_backoff(objects, name), *(_backoff(objects, folder) for folder in folders)),
        heartbeats=tuple(map(paths.heartbeat, folders)),
    )


def _backoff(objects: ObjectStore, folder: str) -> RestartBackoff:
    return RestartBackoff(objects, f"{folder}/failures.json")


def _call_airflow(connect: Connect, request: Callable[[Airflow], None]) -> DeltaworksError | None:
    """What Airflow answered instead of doing it; None where it did it."""
    try:
        with connect() as airflow:
            request(airflow)
    except DeltaworksError as error:
        return error
    return None


def _partly_done_error(error: DeltaworksError, what_is_done: str, retry_hint: str) -> DeltaworksError:
    """The refusal as the error of a command, which says first what is done and what is not."""
    return type(error)(
        error.condition, f"{what_is_done} {error.message}", hint=f"{error.hint} {retry_hint}", retryable=error.retryable
    )
