"""Finds the processes of one stack in the process table, including those whose parent has ended.

A process belongs to a stack if its environment (DELTAWORKS_HOME) or its working directory says so and its command is a
known program. Shells and editors with the stack's environment are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from sandbox.stack.home import StackHome

_MAX_COMMAND_LENGTH = 300
TASK_KINDS = frozenset({"stream", "relay", "rules", "feeds", "job", "task", "worker-busy"})
# Patterns of command lines, and the kind of process; the first match decides.
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"supervisor\.supervisord", "supervisor"),
        (r"sandbox\.servers\.moto_server", "moto"),
        (r"deltaworks\.alerts\.deadman|sandbox\.stack\.companion", "deadman"),
        (r"-m deltaworks\.cli collect\b", "collector"),
        (r"java.*s3proxy", "s3proxy"),
        (r"java.* kafka\.(Kafka|tools\.StorageTool)\b", "kafka"),
        (r"ingest_(?:stream|group)\.py", "stream"),
        (r"deltaworks\.sources\.objects\.relay", "relay"),
        (r"-m deltaworks\.rules", "rules"),
        (r"-m deltaworks\.(?:feeds|remediation)\b", "feeds"),
        (r"org\.apache\.spark\.deploy\.SparkSubmit|spark_jobs/|-m deltaworks\.operations\b|pyspark[./]daemon", "job"),
        (r"^airflow worker -- LocalExecutor.*<idle>", "worker-idle"),
        (r"^airflow worker -- LocalExecutor", "worker-busy"),
        (r"^airflow (worker -- |supervisor: )", "task"),
        (r"^airflow |-m airflow |/bin/airflow |sandbox\.airflow\.component", "airflow"),
    )
)
# Interactive tools, whose arguments may contain the stack's paths.
_TOOLS = ("bash", "sh", "zsh", "tail", "less", "vi", "vim", "nano", "grep", "find", "pytest", "deltaworks")


@dataclass(frozen=True, slots=True)
class StackProcess:
    """A process of a stack, identified by `pid` and `create_time`."""

    pid: int
    kind: str
    command: str
    create_time: float
    parent_pid: int


def stack_processes(home: StackHome) -> tuple[StackProcess, ...]:
    """Returns all live processes of the stack, oldest first, except the calling process and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    processes = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            described = _describe(process, home)
        except (psutil.Error, OSError):
            continue
        if described is not None:
            processes.append(described)
    return tuple(sorted(processes, key=lambda item: item.create_time))


def task_processes(home: StackHome) -> tuple[StackProcess, ...]:
    """Returns the live processes of Airflow tasks: streams, relays, jobs and their supervising processes."""
    return tuple(process for process in stack_processes(home) if process.kind in TASK_KINDS)


def with_descendants(roots: Iterable[StackProcess]) -> tuple[StackProcess, ...]:
    """Returns the given processes and all their descendants, of any kind."""
    family = {root.pid: root for root in roots}
    for root in tuple(family.values()):
        process = _same_process(root)
        with contextlib.suppress(psutil.Error):
            for child in process.children(recursive=True) if process else ():
                family.setdefault(child.pid, _child(child))
    return tuple(family.values())


def _child(process: psutil.Process) -> StackProcess:
    command = " ".join(process.cmdline())[:_MAX_COMMAND_LENGTH]
    kind = _kind(process.name(), command) or "child"
    return StackProcess(process.pid, kind, command, process.create_time(), process.ppid())


def _describe(process: psutil.Process, home: StackHome) -> StackProcess | None:
    with process.oneshot():
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        command = " ".join(process.cmdline())
        kind = _kind(process.name(), command)
        if kind is None or not _belongs(process, home):
            return None
        return StackProcess(process.pid, kind, command[:_MAX_COMMAND_LENGTH], process.create_time(), process.ppid())


def _kind(name: str, command: str) -> str | None:
    if name in _TOOLS:
        return None
    return next((kind for pattern, kind in _KINDS if pattern.search(command)), None)


def _belongs(process: psutil.Process, home: StackHome) -> bool:
    try:
        if process.environ().get("DELTAWORKS_HOME") == str(home.root):
            return True
    except psutil.Error:
        pass
    return process.cwd() == str(home.run)


def end_processes(processes: Iterable[StackProcess], *, seconds: float) -> tuple[StackProcess, ...]:
    """Terminates processes, and kills those that are still alive after `seconds`.

    Returns:
        The killed processes.
    """
    items = {item.pid: item for item in processes}
    live = _alive_processes(items.values())
    for process in live:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(live, timeout=seconds)
    return kill_processes([items[process.pid] for process in alive])


def kill_processes(processes: Iterable[StackProcess]) -> tuple[StackProcess, ...]:
    """Kills processes and waits for their end. Never kills a later process with the same id."""
    items = {item.pid: item for item in processes}
    live = _alive_processes(items.values())
    for process in live:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(live, timeout=5)
    return tuple(items[process.pid] for process in live)


def _alive_processes(processes: Iterable[StackProcess]) -> list[psutil.Process]:
    return [process for item in processes if (process := _same_process(item)) is not None]


def _same_process(item: StackProcess) -> psutil.Process | None:
    try:
        process = psutil.Process(item.pid)
        return process if abs(process.create_time() - item.create_time) < 1 else None
    except psutil.Error:
        return None
