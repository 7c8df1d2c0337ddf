"""Schedulers of one Airflow, each restarted when it ends, like containers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psutil

from sandbox.stack.environment import process_environment
from sandbox.stack.home import StackHome
from sandbox.stack.stack_programs import SCHEDULER
from sandbox.stack.supervisor import Supervisor

_AGAIN = 'while :; do "$@"; sleep 5; done'


class Schedulers:
    """Replaces the only scheduler of a running stack inside the block.

    A scheduler is killed with all processes it started, as in a container. A surviving process would hold its database
    connection, and thereby its last transaction, open: no other scheduler could get the runs it had locked.

    Args:
        variables: environment of the schedulers, overriding the stack's.
        count: number of schedulers.
    """

    def __init__(self, home: StackHome, *, variables: Mapping[str, str], count: int) -> None:
        self._home = home
        self._variables = dict(variables)
        self._count = count
        self._shells: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        Supervisor(self._home).stop([SCHEDULER], seconds=60)
        command = [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"]
        for number in range(self._count):
            with (self._home.logs / f"{SCHEDULER}-{number}.log").open("ab") as log:
                shell = subprocess.Popen(
                    ["/bin/sh", "-c", _AGAIN, "again", *command],
                    env={**process_environment(self._home), **self._variables},
                    cwd=self._home.run,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._shells.append(shell)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shell in self._shells:
            family = psutil.Process(shell.pid).children(recursive=True)
            shell.kill()
            _kill(family)
            shell.wait()

    def kill_parent_of(self, pid: int) -> None:
        """Kills the scheduler that started a process."""
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        (shell,) = (shell for shell in self._shells if shell.pid in above)
        (scheduler,) = psutil.Process(shell.pid).children()
        _kill([scheduler, *scheduler.children(recursive=True)])


def _kill(family: list[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
