"""How a task starts the process it stands for, so that the process never outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def child_options() -> dict[str, Any]:
    """Options of `subprocess.Popen` for a child that dies with this process.

    Standard input is closed: inherited, it would be the socket to the task's supervisor, which then waits a
    minute for it when the task has died. On Linux the kernel kills the child the moment this process dies;
    elsewhere, and further down the tree, the child's own guard does it within seconds.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if sys.platform == "linux":
        options["preexec_fn"] = _dies_with(os.getpid())
    return options


def _dies_with(parent: int) -> Callable[[], None]:
    # Loaded here: between fork and exec nothing may be imported.
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request took effect
            os._exit(1)

    return before_exec
