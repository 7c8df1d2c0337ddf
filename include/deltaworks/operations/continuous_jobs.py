"""Stops, starts and restarts continuous jobs: streams, relays, groups of streams, feeds, rules and remediations.

A stopped job has a stop flag, an object in the lake that ends it between two batches, and a paused DAG, so that
`@continuous` starts no next run. The flag is set first: even if Airflow is unreachable or refuses, the job ends, and
later runs end immediately. The DAG of a group is paused only for the complete group; if one member is stopped, the
driver skips it.

A hung process is ended by clearing its running task, which is safe at any time: the next try resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from deltaworks.airflow_client.api import DagRun, TaskInstance
from deltaworks.control import paths
from deltaworks.control.background import map_concurrently
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import StopFlag, group_backoff, group_stop_flag, read_heartbeat
from deltaworks.control.health.limits import HealthLimits, age_seconds
from deltaworks.control.health.report import SlotUse, limits_of, slot_use, subjects
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import find_by_name
from deltaworks.specs.dag_ids import RULES_DAG, SPARK_CONNECT_DAG, SQL_SERVER_DAG, dag_id, split_dag_id
from deltaworks.specs.groups import group_of, stream_dag_id, stream_group

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_RECENT_RUNS = 5


class RunsApi(Protocol):
    """The requests to Airflow that this module needs."""

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]: ...

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]: ...

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None: ...


def running_task(api: RunsApi, dag_id: str, *, state: str = "running") -> tuple[DagRun, TaskInstance] | None:
    """Returns the newest run that has a task in the given state, and that task; None if there is none.

    Raises:
        DeltaworksError: Airflow refuses or does not answer.
    """
    for run in api.dag_runs(dag_id, limit=_RECENT_RUNS):
        if run.is_finished:
            continue
        for task in api.task_instances(dag_id, run.run_id):
            if task.state == state:
                return run, task
    return None


_ENDED_STATES = ("ended", "failed")
_POLL_SECONDS = 1.0


class Airflow(RunsApi, Protocol):
    """The requests to Airflow that this module needs."""

    def pause(self, dag_id: str) -> None: ...

    def unpause(self, dag_id: str) -> None: ...


#: Opens a client; raises if no Airflow is configured.
Connect = Callable[[], AbstractContextManager[Airflow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousJob:
    """A stream, relay, group or other continuous process with its DAG, stop flag, backoffs and heartbeats.

    Args:
        display_name: its name in messages; `cli_argument` is its argument in commands.
        dag_id: empty if Kubernetes runs it, as it does relays; a stopped relay's pod waits.
        group: for one pipeline of a group, the group. Its DAG is not paused for a single pipeline.
        slot_use: reads the use of its pool by other processes; None if it has no pool.
        check_start: raises if the job's next start is refused; called before anything is changed.
        refused_members: returns the errors of a group's pipelines whose start is refused.
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
    slot_use: Callable[[], SlotUse | None] = lambda: None
    check_start: Callable[[], None] = lambda: None
    refused_members: Callable[[], list[DeltaworksError]] = list

    @property
    def is_stalled(self) -> bool:
        """Whether the job's heartbeat is stale without an end state, so that a stop flag cannot end the job.

        False for members of a group, whose driver runs other members too, and for pods, which their liveness probe
        ends.
        """
        if self.group or not self.dag_id or len(self.heartbeats) != 1:
            return False
        heartbeat = read_heartbeat(self.objects, self.heartbeats[0])
        if heartbeat is None or heartbeat.state in _ENDED_STATES:
            return False
        return age_seconds(heartbeat.written_at, utc_now()) > self.limits.stale_seconds(heartbeat.trigger_seconds)

    def has_heartbeat_of(self, run: str) -> bool:
        """Returns whether the last heartbeat was written by the given try of the job's task.

        Args:
            run: the try, as `deltaworks.control.provenance.current_run` returns it.
        """
        heartbeat = read_heartbeat(self.objects, self.heartbeats[0])
        return heartbeat is not None and heartbeat.run == run

    @property
    def is_group_stopped(self) -> bool:
        """Whether the job belongs to a group that is stopped as a whole."""
        return bool(self.group) and group_stop_flag(self.objects, self.group).read() is not None

    def clear_stop(self) -> None:
        """Clears the stop flag and the backoff after failures. Idempotent."""
        self.flag.clear()
        for backoff in self.backoffs:
            backoff.reset()

    def wait_until_ended(self, *, wait_seconds: float) -> None:
        """Waits until the heartbeats show that no process of the job is alive.

        Raises:
            TransientError: STREAM_STILL_RUNNING.
        """
        for key in self.heartbeats:
            deadline = time.monotonic() + wait_seconds
            while (heartbeat := read_heartbeat(self.objects, key)) is not None and heartbeat.state not in _ENDED_STATES:
                if time.monotonic() > deadline:
                    raise TransientError(
                        "STREAM_STILL_RUNNING",
                        f"{heartbeat.pipeline} is still {heartbeat.state} after {wait_seconds:.0f} s "
                        f"(process {heartbeat.pid} on {heartbeat.host}). Its stop flag stays set.",
                        hint="A long batch ends first. Check its driver log, or mark the task failed in Airflow. "
                        f"`deltaworks start {self.cli_argument}` clears the stop.",
                    )
                time.sleep(_POLL_SECONDS)


def stop_job(
    job: ContinuousJob, *, by: str, reason: str, wait_seconds: float, connect: Connect, echo: Callable[[str], None]
) -> None:
    """Sets a job's stop flag, pauses its DAG, and waits until the job has ended. Idempotent.

    Raises:
        DeltaworksError: the job has ended, but its DAG is not paused; the condition is that of Airflow's error.
            TransientError: STREAM_STILL_RUNNING.
    """
    job.flag.set(by=by, reason=reason)
    echo(f"Stop flag of {job.display_name} is set.")
    airflow_error = (
        None if job.group or not job.dag_id else _call_airflow(connect, lambda airflow: airflow.pause(job.dag_id))
    )
    if airflow_error is not None:
        echo(f"{job.dag_id} is not paused ({airflow_error.condition}); {job.display_name} still ends by its flag.")
    echo("Waiting for the job to end.")
    job.wait_until_ended(wait_seconds=wait_seconds)
    if airflow_error is not None:
        raise _partly_done_error(
            airflow_error,
            f"{job.display_name} has ended with its stop flag set, but {job.dag_id} could not be paused. Unless it "
            "was paused before, Airflow keeps starting runs, which end immediately.",
            f"Then `deltaworks stop {job.cli_argument}` again, or pause {job.dag_id} in Airflow.",
        )
    echo(f"{job.display_name} is stopped. `deltaworks start {job.cli_argument}` resumes it.")


def start_job(job: ContinuousJob, *, connect: Connect, echo: Callable[[str], None]) -> None:
    """Clears a job's stop flag and backoff, and unpauses its DAG. Idempotent.

    A group starts without the members that are refused.

    Raises:
        ContractError: SPEC_CHANGE_UNSAFE, SPEC_RECORD_UNREADABLE: the stream would end at once; nothing is changed.
        DeltaworksError: the flag is cleared, but the DAG is not unpaused; the condition is that of Airflow's error.
    """
    job.check_start()
    for refused in job.refused_members():
        echo(f"It starts without one of its members. {refused}")
    job.clear_stop()
    if job.is_group_stopped:
        echo(f"{job.display_name} runs again once its group does: `deltaworks start --group {job.group}`.")
        return
    airflow_error = (
        _call_airflow(connect, lambda airflow: _unpause_and_retry(airflow, job, echo)) if job.dag_id else None
    )
    if airflow_error is not None:
        raise _partly_done_error(
            airflow_error,
            f"The stop of {job.display_name} is cleared, but its DAG {job.dag_id} could not be unpaused. "
            "While it is paused, no run starts.",
            f"Then `deltaworks start {job.cli_argument}` again, or unpause {job.dag_id} in Airflow.",
        )
    use = job.slot_use()
    if use is not None and use.is_full:
        echo(f"{job.display_name} is released. {use.describe(job.dag_id)}")
        echo(use.next_step)
        return
    starter = f"the driver of its group {job.group}" if job.group else "Airflow" if job.dag_id else "its pod"
    echo(f"{job.display_name} is released; {starter} starts it within seconds.")


def _unpause_and_retry(airflow: Airflow, job: ContinuousJob, echo: Callable[[str], None]) -> None:
    """Unpauses a job's DAG, and clears its task if the task waits for its next try, which may take minutes.

    The task of a group is not cleared for one member, since it runs all members.
    """
    airflow.unpause(job.dag_id)
    waiting = None if job.group else running_task(airflow, job.dag_id, state="up_for_retry")
    if waiting is not None:
        run, task = waiting
        airflow.clear_task(job.dag_id, run.run_id, task.task_id)
        echo(f"{job.display_name} waited for its next try; its task was cleared to start it now.")


def restart_job(
    job: ContinuousJob, *, by: str, reason: str, wait_seconds: float, connect: Connect, echo: Callable[[str], None]
) -> None:
    """Stops a job between two batches and starts it again with its current declaration.

    The DAG is not paused meanwhile. A run that starts while the stop flag is set ends immediately, and a later one
    stays. So Airflow is needed only to unpause a paused DAG, and to clear the task of a stalled job.

    Raises:
        DeltaworksError: as `start_job`; TransientError: STREAM_STILL_RUNNING. ContractError: the start of the job, or
            of a member of the group, is refused; it keeps running.
    """
    job.check_start()
    for refused in job.refused_members():
        raise refused
    if job.is_stalled:
        _kill_stalled(job, connect=connect, echo=echo)
    else:
        job.flag.set(by=by, reason=reason)
        echo(f"Stop flag of {job.display_name} is set; waiting for its job to end.")
        job.wait_until_ended(wait_seconds=wait_seconds)
    start_job(job, connect=connect, echo=echo)


def _kill_stalled(job: ContinuousJob, *, connect: Connect, echo: Callable[[str], None]) -> None:
    """Clears the task of a stalled job. Does nothing if a new try is starting that has not written a heartbeat yet."""
    with connect() as airflow:
        running = running_task(airflow, job.dag_id)
        if running is None:
            echo(f"{job.display_name} has a stale heartbeat, and none of its tasks is running.")
            return
        run, task = running
        is_starting = task.start is None or (utc_now() - task.start).total_seconds() < job.limits.grace_seconds
        if is_starting and not job.has_heartbeat_of(f"{job.dag_id}/{run.run_id}/{task.task_id}/{task.try_number}"):
            echo(f"A new task of {job.display_name} is starting ({task.start}); it is not cleared.")
            return
        airflow.clear_task(job.dag_id, run.run_id, task.task_id)
    echo(f"{job.display_name} is stalled: its task was cleared, and its next try resumes.")


def continuous_job(catalog: Catalog, name: str, *, is_start: bool) -> ContinuousJob:
    """Returns the continuous job with a name, which is a DAG id such as `games__feeds` or `rules`, a pipeline or a
    relay.

    A job with an invalid declaration can be stopped but not started.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, RELAY_UNKNOWN, REMEDIATION_UNKNOWN, or the error of its declaration.
    """
    objects = open_objects(catalog.environment.lake)
    kind, subject = _parse_job_name(catalog, name)
    _reject_unknown(catalog, kind, subject, name)
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
        slot_use=lambda: _read_slot_use(catalog, objects, location.dag_id),
        check_start=partial(check_stream_start, catalog, subject) if kind == "stream" and is_start else lambda: None,
    )


def check_stream_start(catalog: Catalog, pipeline: str) -> None:
    """Checks what the stream checks when it starts: that it may continue with the current declaration.

    Raises:
        ConfigError: the declaration is invalid.
        ContractError: SPEC_CHANGE_UNSAFE, SPEC_RECORD_UNREADABLE.
    """
    spec, home = catalog.pipeline(pipeline), PipelineHome.open(catalog.environment.lake, pipeline)
    try:
        home.specs.check(spec)
    except ContractError as error:
        if error.condition != "SPEC_CHANGE_UNSAFE":
            raise
        # Imported for an unsafe edit only: it reads tables, since an edit is safe while these have no rows.
        from deltaworks.engine.recovery import check_spec
        from deltaworks.tables.lake import Lake

        check_spec(Lake(catalog.environment.lake), home, spec)


def _refused_members(catalog: Catalog, pipelines: Sequence[str]) -> list[DeltaworksError]:
    refused: list[DeltaworksError] = []
    for pipeline in pipelines:
        try:
            check_stream_start(catalog, pipeline)
        except (ConfigError, ContractError) as error:
            refused.append(error)
    return refused


def _read_slot_use(catalog: Catalog, objects: ObjectStore, dag: str) -> SlotUse | None:
    """Reads the use of a DAG's pool by other processes; None for a pod or an invalid declaration."""
    every = subjects(catalog)
    own = next((subject for subject in every if subject.dag_id == dag), None)
    if own is None or catalog.environment.kubernetes is not None:
        return None
    others = [subject for subject in every if subject.dag_id != dag]
    beats = map_concurrently(lambda other: read_heartbeat(objects, paths.heartbeat(other.control)), others)
    return slot_use(catalog, own, zip(others, beats, strict=True))


def _reject_unknown(catalog: Catalog, kind: str, subject: str, name: str) -> None:
    """Rejects a name that is near to that of no declared pipeline alone: relays and DAGs are suggested too.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, RELAY_UNKNOWN.
    """
    if kind not in ("stream", "relay", "feeds") or catalog.declares(
        "relay" if kind == "relay" else "pipeline", subject
    ):
        return
    names = [*catalog.pipelines, *catalog.relays, paths.RULES_PROCESS]
    names += [paths.SQL_SERVER_PROCESS] if catalog.environment.sql_server is not None else []
    names += [paths.SPARK_CONNECT_PROCESS] if catalog.environment.spark_connect is not None else []
    names += [name for spec_kind, name in catalog.broken if spec_kind in ("pipeline", "relay")]
    names += [dag_id(spec.pipeline, "feeds") for spec in catalog.pipelines.values() if spec.feeds]
    names += [dag_id(spec.name, "remediation") for spec in catalog.environment.remediations]
    raise ConfigError(
        "RELAY_UNKNOWN" if kind == "relay" else "PIPELINE_UNKNOWN",
        f"There is no stream, relay or other process called {name!r}.",
        hint=nearest_names_hint([name], names, prefix="Known:"),
    )


def _parse_job_name(catalog: Catalog, name: str) -> tuple[str, str]:
    """Returns kind and name of a job. An unknown name is returned as that of a pipeline."""
    if catalog.declares("pipeline", name):
        return "stream", name
    if catalog.declares("relay", name):
        return "relay", name
    if name in (paths.RULES_PROCESS, RULES_DAG):
        return "rules", paths.RULES_PROCESS
    if name in (paths.SQL_SERVER_PROCESS, SQL_SERVER_DAG):
        return "sql_server", paths.SQL_SERVER_PROCESS
    if name in (paths.SPARK_CONNECT_PROCESS, SPARK_CONNECT_DAG):
        return "spark_connect", paths.SPARK_CONNECT_PROCESS
    subject, kind = split_dag_id(name)
    return (kind, subject) if kind in _LOCATORS else ("stream", name)


@dataclass(frozen=True, slots=True)
class _JobLocation:
    """The control folder of a job, its DAG (empty for a pod) and its group of streams."""

    folder: str
    dag_id: str
    group: str = ""


def _locate_stream(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start:
        catalog.pipeline(name)
    group = group_of(catalog, name)
    return _JobLocation(paths.pipeline_control(name), stream_dag_id(name, group), group or "")


def _locate_relay(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start:
        catalog.relay(name)
    in_pod = catalog.environment.kubernetes is not None
    return _JobLocation(paths.relay_control(name), "" if in_pod else dag_id(name, "relay"))


def _locate_rules(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    if name != paths.RULES_PROCESS:
        catalog.pipeline(dag_id(name, "rules"))
    return _JobLocation(paths.rules_control(), RULES_DAG)


def _locate_sql_server(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    if name != paths.SQL_SERVER_PROCESS:
        catalog.pipeline(dag_id(name, "sql_server"))
    return _JobLocation(paths.sql_server_control(), SQL_SERVER_DAG)


def _locate_spark_connect(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    if name != paths.SPARK_CONNECT_PROCESS:
        catalog.pipeline(dag_id(name, "spark_connect"))
    return _JobLocation(paths.spark_connect_control(), SPARK_CONNECT_DAG)


def _locate_feeds(catalog: Catalog, name: str, is_start: bool) -> _JobLocation:
    if is_start:
        catalog.pipeline(name)
    return _JobLocation(paths.feeds_control(name), dag_id(name, "feeds"))


def _locate_remediation(catalog: Catalog, name: str, _to_start: bool) -> _JobLocation:
    find_by_name(name, {spec.name: spec for spec in catalog.environment.remediations}, "remediation")
    return _JobLocation(paths.remediation_control(name), dag_id(name, "remediation"))


#: Functions that locate a job, by the kind in its DAG id.
_LOCATORS: Final[dict[str, Callable[[Catalog, str, bool], _JobLocation]]] = {
    "stream": _locate_stream,
    "relay": _locate_relay,
    "rules": _locate_rules,
    "sql_server": _locate_sql_server,
    "spark_connect": _locate_spark_connect,
    "feeds": _locate_feeds,
    "remediation": _locate_remediation,
}


def group_job(catalog: Catalog, name: str) -> ContinuousJob:
    """Returns a complete group of streams as one job: its driver, with all its pipelines.

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
        refused_members=partial(_refused_members, catalog, tuple(declared.members)),
    )


def _backoff(objects: ObjectStore, folder: str) -> RestartBackoff:
    return RestartBackoff(objects, paths.failures(folder))


def _call_airflow(connect: Connect, request: Callable[[Airflow], None]) -> DeltaworksError | None:
    """Sends a request to Airflow and returns its error, or None on success."""
    try:
        with connect() as airflow:
            request(airflow)
    except DeltaworksError as error:
        return error
    return None


def _partly_done_error(error: DeltaworksError, what_is_done: str, retry_hint: str) -> DeltaworksError:
    """Returns Airflow's error with a message about the completed part, and the hint to repeat the command."""
    return error.with_message(f"{what_is_done} {error.message}", hint=f"{error.hint} {retry_hint}")
