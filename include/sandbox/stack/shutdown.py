"""Stops everything that Airflow runs, cooperatively, and resumes it at the next start.

A stream that Airflow kills cannot finish its batch. So `down` pauses the DAGs, which would otherwise start the streams
again, and sets stop flags. The next `up` undoes exactly these changes: a stream that its owner stopped stays stopped.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.errors import DeltaworksError
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.project import load_catalog
from sandbox.stack.environment import loaded_env
from sandbox.stack.home import StackHome
from sandbox.stack.report import describe_dags
from sandbox.stack.state import load_state, save_state

STOPPED_BY = "deltaworks down"


@dataclass(frozen=True, slots=True)
class StopFlags:
    """Stop flags of all declared relays, pipelines and other continuous processes (rules, feeds, remediations), by
    name.
    """

    relays: Mapping[str, StopFlag]
    pipelines: Mapping[str, StopFlag]
    processes: Mapping[str, StopFlag]

    @classmethod
    def load(cls, home: StackHome) -> StopFlags:
        """Returns the stop flags for the checkout's catalog in the stack's lake, whose server must be running."""
        with loaded_env(home):
            catalog = load_catalog(root=home.project, skip_invalid=True)
            objects = open_objects(catalog.environment.lake)
        # A process whose declaration has become invalid may still run with the former one.
        relays = {
            name: StopFlag(objects, paths.stop_request(paths.relay_control(name)))
            for name in (*catalog.relays, *catalog.invalid_relays())
        }
        pipelines = {
            name: StopFlag(objects, paths.stop_request(paths.pipeline_control(name)))
            for name in (*catalog.pipelines, *catalog.invalid_pipelines())
        }
        folders = {
            paths.RULES_PROCESS: paths.rules_control(),
            **{dag_id(name, "feeds"): paths.feeds_control(name) for name in catalog.pipelines},
            **{
                dag_id(spec.name, "remediation"): paths.remediation_control(spec.name)
                for spec in catalog.environment.remediations
            },
        }
        processes = {name: StopFlag(objects, paths.stop_request(folder)) for name, folder in folders.items()}
        return cls(relays, pipelines, processes)


def pause_dags(home: StackHome, api: AirflowApi) -> tuple[str, ...]:
    """Pauses all DAGs that are not paused.

    Records them first, so that `up` also resumes them if `down` is interrupted.

    Returns:
        Descriptions of failures; `down` continues regardless.
    """
    try:
        dags = api.dags()
        running = [dag.dag_id for dag in dags if not dag.is_paused]
        _record_paused(home, running)
    except DeltaworksError as error:
        return (f"DAGs could not be paused: {error}",)
    try:
        api.pause_all()
    except DeltaworksError as error:
        return (f"Not all of {describe_dags(running)} could be paused: {error}",)
    try:
        _pause_new_dags(home, api, {dag.dag_id for dag in dags})
    except DeltaworksError as error:
        return (f"DAGs that Airflow has just found could not be paused: {error}",)
    return ()


def _pause_new_dags(home: StackHome, api: AirflowApi, known_dags: Container[str]) -> None:
    """Pauses DAGs that Airflow has discovered since `pause_dags` listed them, and records all of them.

    A DAG discovered before `pause_all` is already paused by it, so it is recorded too.
    """
    new = [dag for dag in api.dags() if dag.dag_id not in known_dags]
    _record_paused(home, [dag.dag_id for dag in new])
    for dag in new:
        if not dag.is_paused:
            api.pause(dag.dag_id)


def _record_paused(home: StackHome, dag_ids: Iterable[str]) -> None:
    state = load_state(home)
    save_state(home, state.replace(paused_dags=_union(state.paused_dags, dag_ids)))


def set_stop_flags(home: StackHome) -> tuple[str, ...]:
    """Sets the stop flags of all continuous processes, and records those that were not set before.

    Returns:
        Descriptions of failures.
    """
    try:
        flags = StopFlags.load(home)
        relays = {name: flag for name, flag in flags.relays.items() if flag.read() is None}
        pipelines = {name: flag for name, flag in flags.pipelines.items() if flag.read() is None}
        processes = {name: flag for name, flag in flags.processes.items() if flag.read() is None}
        state = load_state(home)
        changed = state.replace(
            stopped_relays=_union(state.stopped_relays, relays),
            stopped_pipelines=_union(state.stopped_pipelines, pipelines),
            stopped_processes=_union(state.stopped_processes, processes),
        )
        save_state(home, changed)
        for flag in (*relays.values(), *pipelines.values(), *processes.values()):
            flag.set(by=STOPPED_BY, reason="the embedded stack is stopping")
    except DeltaworksError as error:
        return (f"Stop flags could not be set: {error}",)
    return ()


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*first, *second}))


def withdraw_stop_flags(home: StackHome) -> None:
    """Clears the stop flags that `down` set. Call it before a process reads them."""
    state = load_state(home)
    if not (state.stopped_relays or state.stopped_pipelines or state.stopped_processes):
        return
    flags = StopFlags.load(home)
    own_flags = [flags.relays[name] for name in state.stopped_relays if name in flags.relays]
    own_flags += [flags.pipelines[name] for name in state.stopped_pipelines if name in flags.pipelines]
    own_flags += [flags.processes[name] for name in state.stopped_processes if name in flags.processes]
    for flag in own_flags:
        request = flag.read()
        # An owner may have requested a stop in the meantime.
        if request is not None and request.by == STOPPED_BY:
            flag.clear()
    save_state(home, state.replace(stopped_relays=(), stopped_pipelines=(), stopped_processes=()))


def unpause_dags(home: StackHome, api: AirflowApi) -> tuple[str, ...]:
    """Unpauses the DAGs that `down` paused, except deleted ones; returns their ids."""
    state = load_state(home)
    paused = {dag.dag_id for dag in api.dags() if dag.is_paused} if state.paused_dags else set()
    resumed = tuple(dag_id for dag_id in state.paused_dags if dag_id in paused)
    if resumed and paused == set(resumed):
        api.pause_all(paused=False)
    else:
        # DAGs that an owner paused stay paused.
        for dag_id in resumed:
            api.unpause(dag_id)
    save_state(home, load_state(home).replace(paused_dags=()))
    return resumed
