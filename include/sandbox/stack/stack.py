"""Starts, stops and reports the embedded stack: `up`, `down` and `status`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import psutil

from deltaworks.build.jars import ensure_jars
from deltaworks.control.clock import iso_now
from deltaworks.control.health.verdicts import STARTED_AT_VARIABLE
from deltaworks.errors import ConcurrencyError, DeltaworksError
from deltaworks.specs.shares import STREAM_SLOTS_VARIABLE
from sandbox.airflow.settings import AirflowHome
from sandbox.stack.declared_topics import declared_collector, declared_topics
from sandbox.stack.environment import (
    COLLECTOR_URL,
    KAFKA_BOOTSTRAP,
    bootstrap_address,
    collector_address,
    loaded_env,
    process_environment,
    read_env,
    stack_variables,
    stream_slots,
    write_env,
)
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST, choose_ports
from sandbox.stack.preflight import preflight
from sandbox.stack.processes import StackProcess, end_processes, stack_processes, task_processes, with_descendants
from sandbox.stack.report import DownReport, ProgramStatus, StackAddresses, StackStatus, describe_dags
from sandbox.stack.secrets import ADMIN_USER, StackSecrets, load_or_create_secrets
from sandbox.stack.shutdown import pause_dags, set_stop_flags, unpause_dags, withdraw_stop_flags
from sandbox.stack.source_creation import create_sources
from sandbox.stack.stack_programs import (
    API_SERVER,
    COLLECTOR,
    KAFKA,
    PROGRAMS,
    S3PROXY,
    START_ORDER,
    STOP_ORDER,
    STORES,
    HealthChecks,
    failed_programs,
    stack_programs,
)
from sandbox.stack.state import load_state, save_state, stack_lock
from sandbox.stack.supervisor import ProgramState, Supervisor, last_lines, wait_until
from sandbox.stack.waiting import busy_steps, wait_while_progressing

Progress = Callable[[str], None]
# Maximum time without CPU use before a program is healthy. The total time is not limited, because it depends on the
# machine.
_STORES_SECONDS = 60.0
_AIRFLOW_SECONDS = 180.0
_LEFTOVER_SECONDS = 5.0


def no_progress(_line: str) -> None:
    """Ignores progress lines."""


def up(
    *,
    home: StackHome | None = None,
    foreground: bool = False,
    pipelines: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> StackAddresses:
    """Starts the stack and waits until all programs are healthy. A running stack gets what its pipelines need by now.

    Continues from the last `down`: with the same addresses, lake, landed objects, queues, streams and Airflow history.
    Resumes what `down` paused.

    Args:
        foreground: waits for SIGINT or SIGTERM, then stops the stack.
        pipelines: pipelines to run, with the stores they need; by default those of DELTAWORKS_PIPELINES, or all.
        variables: additional environment variables of its processes, which override the stack's.
        progress: called with one line per step.

    Raises:
        ConfigError: a missing prerequisite, or PORT_IN_USE.
        ConcurrencyError: STACK_LEFTOVERS or STACK_BUSY.
        DeltaworksError: PROGRAM_FAILED, with the end of the program's log.
    """
    home = home or StackHome.default()
    home.create()
    with stack_lock(home):
        supervisor = Supervisor(home)
        already_running = supervisor.pid() is not None
        if already_running:
            with loaded_env(home):
                _add_missing(home, supervisor, progress)
        else:
            _prepare(home, supervisor, progress, pipelines, variables or {})
        addresses = _addresses(home, already_running=already_running)
        _start_programs(home, supervisor, progress)
    progress(f"Airflow: {addresses.airflow_url}  login: {addresses.airflow_user} {addresses.airflow_password}")
    if foreground:
        _wait_for_signal()
        down(home=home, progress=progress)
    return addresses


def _prepare(
    home: StackHome,
    supervisor: Supervisor,
    progress: Progress,
    pipelines: Sequence[str] | None,
    own_variables: Mapping[str, str],
) -> None:
    reject_leftovers(home)
    progress("Checking Python, Java and memory")
    # Maven is not required here, because `ensure_jars` needs it only for missing or outdated jars.
    machine = preflight(need_maven=False)
    for warning in machine.warnings:
        progress(f"Warning: {warning}")
    ensure_jars(progress=progress)
    state = load_state(home)
    ports = choose_ports(state.ports)
    save_state(home, state.replace(ports=ports))
    keys = load_or_create_secrets(home.secrets_file)
    with_broker = bool(declared_topics(home, pipelines))
    collector = declared_collector(home, pipelines)
    variables = stack_variables(
        home,
        ports=ports,
        keys=keys,
        java_home=machine.java.home,
        with_broker=with_broker,
        with_collector=collector is not None,
        pipelines=pipelines,
    )
    slots = os.environ.get(STREAM_SLOTS_VARIABLE) or str(stream_slots(psutil.virtual_memory().total))
    start = {STARTED_AT_VARIABLE: iso_now(), STREAM_SLOTS_VARIABLE: slots}
    write_env(home, {**variables, **start, **own_variables})
    programs = stack_programs(
        home, ports=ports, keys=keys, with_broker=with_broker, collector=collector, progress=progress
    )
    progress("Starting the process supervisor")
    # Always set, because a pipeline that needs the broker may be declared while the stack runs.
    broker = {KAFKA_BOOTSTRAP: bootstrap_address(ports)}
    supervisor.launch(programs, environment=process_environment(home) | broker)


def add_programs(*, home: StackHome | None = None, progress: Progress = no_progress) -> tuple[str, ...]:
    """Adds to a running stack the broker and collector that pipelines need since its start, and creates their sources.

    Idempotent. Addresses and the pipelines to run come from this process's environment variables, as in a program of
    the stack. Returns the added programs.

    Raises:
        ConcurrencyError: STACK_BUSY.
        DeltaworksError: PROGRAM_FAILED.
    """
    home = home or StackHome.default()
    with stack_lock(home):
        supervisor = Supervisor(home)
        if supervisor.pid() is None:
            return ()
        added = _add_missing(home, supervisor, progress)
        checks = HealthChecks(load_state(home).ports, load_or_create_secrets(home.secrets_file))
        stores = _select_programs(added, STORES)
        _start(home, supervisor, checks, stores, seconds=_STORES_SECONDS, progress=progress)
        create_sources(home, progress)
        others = [name for name in added if name not in STORES]
        _start(home, supervisor, checks, others, seconds=_STORES_SECONDS, progress=progress)
    return added


def _add_missing(home: StackHome, supervisor: Supervisor, progress: Progress) -> tuple[str, ...]:
    present, collector = supervisor.programs(), declared_collector(home)
    needed = {KAFKA: bool(declared_topics(home)), COLLECTOR: collector is not None}
    missing = tuple(name for name, is_needed in needed.items() if is_needed and name not in present)
    if not missing:
        return ()
    ports, variables = load_state(home).ports, read_env(home)
    variables |= {KAFKA_BOOTSTRAP: bootstrap_address(ports)} if KAFKA in missing else {}
    variables |= {COLLECTOR_URL: collector_address(ports)} if COLLECTOR in missing else {}
    programs = stack_programs(
        home,
        ports=ports,
        keys=load_or_create_secrets(home.secrets_file),
        with_broker=needed[KAFKA] or KAFKA in present,
        collector=collector,
        progress=progress,
    )
    progress(f"Adding {', '.join(missing)}")
    supervisor.add(programs, missing)
    write_env(home, variables)
    return missing


def reject_leftovers(home: StackHome) -> None:
    """Raises if processes of an earlier run are alive, because they would write to the same tables.

    Raises:
        ConcurrencyError: STACK_LEFTOVERS, with the processes.
    """
    if leftovers := stack_processes(home):
        named = ", ".join(f"{process.pid} ({process.kind})" for process in leftovers)
        raise ConcurrencyError(
            "STACK_LEFTOVERS",
            f"Processes of an earlier run of {home.root} are still alive: {named}.",
            retryable=False,
        )


def _start_programs(home: StackHome, supervisor: Supervisor, progress: Progress) -> None:
    state, keys = load_state(home), load_or_create_secrets(home.secrets_file)
    checks = HealthChecks(state.ports, keys)
    programs = supervisor.programs()
    with ThreadPoolExecutor(1) as pool:
        # In parallel with the stores, which mostly wait for the disk: both take seconds at the first start.
        prepared = pool.submit(_prepare_airflow, home, keys, progress)
        _start(home, supervisor, checks, _select_programs(programs, STORES), seconds=_STORES_SECONDS, progress=progress)
        with loaded_env(home):
            create_sources(home, progress)
        prepared.result()
    withdraw_stop_flags(home)
    for order in START_ORDER:
        _start(home, supervisor, checks, _select_programs(programs, order), seconds=_AIRFLOW_SECONDS, progress=progress)
    with _addresses(home, already_running=True).airflow_api() as api:
        if resumed := unpause_dags(home, api):
            progress(f"Unpaused: {describe_dags(resumed)}")


def _prepare_airflow(home: StackHome, keys: StackSecrets, progress: Progress) -> None:
    airflow = AirflowHome(home, process_environment(home))
    airflow.write_password(keys.admin_password)
    progress("Preparing Airflow's database")
    save_state(home, airflow.import_pools(airflow.migrate(load_state(home))))


def _select_programs(programs: Container[str], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in programs]


def _start(
    home: StackHome,
    supervisor: Supervisor,
    checks: HealthChecks,
    names: Sequence[str],
    *,
    seconds: float,
    progress: Progress,
) -> None:
    for name in names:
        supervisor.start(name)
    began = time.monotonic()
    waiting = list(names)

    def progress_marker() -> Hashable:
        states = supervisor.programs()
        pids = [states[name].pid for name in waiting if name in states]
        return tuple(waiting), busy_steps(pid for pid in pids if pid is not None)

    def all_healthy() -> bool:
        states = supervisor.programs()
        if failed := failed_programs(states, waiting):
            raise _program_error(home, failed[0], "keeps ending right after its start")
        healthy = checks.healthy_programs(states, waiting)
        for name in [name for name in waiting if healthy[name]]:
            waiting.remove(name)
            progress(f"{name} is healthy after {time.monotonic() - began:.0f} s")
        return not waiting

    if wait_while_progressing(all_healthy, progress_marker, stall_seconds=seconds):
        waited = time.monotonic() - began
        raise _program_error(
            home, waiting[0], f"is not healthy after {waited:.0f} s, and has done nothing for {seconds:.0f} s"
        )


def _program_error(home: StackHome, name: str, what: str) -> DeltaworksError:
    log = home.logs / f"{name}.log"
    return DeltaworksError(
        "PROGRAM_FAILED",
        f"{name} {what}. The end of its log:\n{last_lines(log)}",
        hint=f"Read {log}; then `deltaworks down` and `deltaworks up`.",
    )


def _wait_for_signal() -> None:
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    ended.wait()
    for number, handler in before.items():
        signal.signal(number, handler)


def down(*, home: StackHome | None = None, grace_seconds: float = 90.0, progress: Progress = no_progress) -> DownReport:
    """Stops the stack: first streams and relays, then Airflow, then the stores. No process of it is left alive.

    Also ends a partly started stack and the remaining processes of a crashed one. Idempotent.

    Args:
        grace_seconds: how long streams, relays and jobs may take to end before they are killed.
    """
    home = home or StackHome.default()
    began = time.monotonic()
    if not home.root.exists():
        return DownReport(False, (), (), (), 0.0)
    with stack_lock(home):
        supervisor = Supervisor(home)
        was_running = supervisor.pid() is not None
        paused: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        if was_running:
            paused, notes = _end_tasks(home, supervisor, grace_seconds, progress)
            _stop_programs(supervisor, progress)
        killed = _end_leftovers(home, min(grace_seconds, _LEFTOVER_SECONDS), progress)
    return DownReport(was_running, paused, killed, notes, time.monotonic() - began)


def _end_tasks(
    home: StackHome, supervisor: Supervisor, grace_seconds: float, progress: Progress
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    progress("Pausing the DAGs and stopping streams, relays and other continuous processes")
    runs = {name for name, state in supervisor.programs().items() if state.pid is not None}
    notes: tuple[str, ...] = ()
    if API_SERVER in runs:
        with _addresses(home, already_running=True).airflow_api() as api:
            notes += pause_dags(home, api)
    if S3PROXY in runs:
        notes += set_stop_flags(home)
    if tasks := task_processes(home):
        kinds = sorted({process.kind for process in tasks})
        progress(f"Waiting up to {grace_seconds:.0f} s for {len(tasks)} processes ({', '.join(kinds)})")
    if not wait_until(lambda: not task_processes(home), seconds=grace_seconds, poll_seconds=0.5):
        notes += (f"Some tasks did not end within {grace_seconds:.0f} s and were killed.",)
    return load_state(home).paused_dags, notes


def _stop_programs(supervisor: Supervisor, progress: Progress) -> None:
    programs = supervisor.programs()
    for order in STOP_ORDER:
        names = _select_programs(programs, order)
        progress(f"Stopping {', '.join(names)}")
        supervisor.stop(names, seconds=45)
    supervisor.shutdown(seconds=45)


def _end_leftovers(home: StackHome, seconds: float, progress: Progress) -> tuple[StackProcess, ...]:
    # Repeated, because ending a process can reveal others: a driver outlives its killed Java process for a moment.
    ended: list[StackProcess] = []
    for _ in range(3):
        time.sleep(0.2)
        leftovers = stack_processes(home)
        if not leftovers:
            break
        progress(f"Ending leftover processes: {', '.join(f'{p.pid} ({p.kind})' for p in leftovers)}")
        ended += end_processes(with_descendants(leftovers), seconds=seconds)
    return tuple(ended)


def status(*, home: StackHome | None = None) -> StackStatus:
    """Returns the status of the stack. Changes nothing; takes a second if it is running."""
    home = home or StackHome.default()
    supervisor = Supervisor(home)
    states = supervisor.programs()
    if not states:
        absent = [name for name, folder in {KAFKA: home.kafka, COLLECTOR: home.spool}.items() if not folder.exists()]
        names = [name for name in PROGRAMS if name not in absent]
        stopped = tuple(ProgramStatus(name, "STOPPED", None, None, False, "") for name in names)
        return StackStatus(False, False, stopped, None, stack_processes(home))
    names = _select_programs(states, PROGRAMS)
    healthy = HealthChecks(load_state(home).ports, load_or_create_secrets(home.secrets_file)).healthy_programs(
        states, names
    )
    programs = tuple(_program_status(states[name], healthy[name]) for name in names)
    addresses = _addresses(home, already_running=True)
    return StackStatus(True, all(healthy.values()), programs, addresses, ())


def _program_status(state: ProgramState, healthy: bool) -> ProgramStatus:
    uptime = None if state.started_at is None else max(0.0, time.time() - state.started_at)
    return ProgramStatus(state.name, state.state, state.pid, uptime, healthy, state.detail)


def _airflow_url(ports: Mapping[str, int]) -> str:
    return f"http://{HOST}:{ports['airflow']}"


def _addresses(home: StackHome, *, already_running: bool) -> StackAddresses:
    ports, environment = load_state(home).ports, read_env(home)
    keys: StackSecrets = load_or_create_secrets(home.secrets_file)
    return StackAddresses(
        airflow_url=_airflow_url(ports),
        airflow_user=ADMIN_USER,
        airflow_password=keys.admin_password,
        lake_endpoint=environment["DELTAWORKS_LAKE_ENDPOINT"],
        aws_endpoint=environment["DELTAWORKS_AWS_ENDPOINT"],
        landing_queue_url=environment["DELTAWORKS_LANDING_QUEUE_URL"],
        kafka_bootstrap=environment.get(KAFKA_BOOTSTRAP),
        collector_url=environment.get(COLLECTOR_URL),
        ports=ports,
        home=home.root,
        already_running=already_running,
    )
