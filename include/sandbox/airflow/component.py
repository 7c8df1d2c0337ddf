"""Starts one of Airflow's processes as a program of the stack.

A killed scheduler leaves its workers. Idle workers wait forever on a pipe and ignore SIGTERM. Busy workers cannot
report results, since their output pipe is closed, and keep running while the new scheduler reassigns their tasks. So
abandoned workers and their descendants are killed before a scheduler starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.stack.home import StackHome
from sandbox.stack.processes import kill_processes, stack_processes, with_descendants

_AIRFLOW_COMMAND = ("worker-idle", "worker-busy", "task")


def end_abandoned_workers(home: StackHome) -> int:
    """Kills the workers of an earlier scheduler of this stack. Call it only while no scheduler runs.

    Manually started streams and jobs are not touched.

    Returns:
        The number of killed processes.
    """
    abandoned = [process for process in stack_processes(home) if process.kind in _AIRFLOW_COMMAND]
    return len(kill_processes(with_descendants(abandoned)))


def main(arguments: list[str] | None = None) -> None:
    """Replaces this process with `airflow <arguments>`; the process id stays."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["scheduler"]:
        home = StackHome.at(Path(os.environ["DELTAWORKS_HOME"]))
        if count := end_abandoned_workers(home):
            print(f"Ended {count} processes an earlier scheduler left behind.", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "airflow", *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
