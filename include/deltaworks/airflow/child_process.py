"""How a task starts the process it stands for, so that the process never outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

#: Where maintenance shares a machine with streams, a stream that has work gets nine tenths of a core they both want.
MAINTENANCE_NICENESS = 10
_PR_SET_PDEATHSIG = 1


def child_options(*, niceness: int = 0) -> dict[str, Any]:
    """Options of `subprocess.Popen` for a child that dies with this process.

    Standard input is closed: inherited, it would be the socket to the task's supervisor, which then waits a
    minute for it when the task has died. On Linux the kernel kills the child the moment this process dies;
    elsewhere, and further down the tree, the child's own guard does it within seconds.

    Args:
        niceness: by how much it gives way to other processes of the machine, 0 to 19, with all that it starts. On
            Linux only.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if sys.platform == "linux":
        options["preexec_fn"] = _dies_with(os.getpid(), niceness)
    return options


def _dies_with(parent: int, niceness: int) -> Callable[[], None]:
    # Loaded here: between fork and exec nothing may be imported.
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request took effect
            os._exit(1)
        os.nice(niceness)

    return before_exec
