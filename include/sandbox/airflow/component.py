"""Start one of Airflow's processes as a program of the stack.

A scheduler that was killed leaves its workers behind. Idle ones wait for ever on a pipe nobody writes to, and
ignore SIGTERM. Busy ones can report nothing any more, since the pipe of their output is gone, and continue while
the new scheduler gives their task to somebody else. So they are killed, with all they started, before it starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.stack.home import StackHome
from sandbox.stack.processes import kill_processes, stack_processes, with_descendants

_AIRFLOW_COMMAND = ("worker-idle", "worker-busy", "task")


def end_abandoned_workers(home: StackHome) -> int:
    """Kill what an earlier scheduler of this stack left behind; call it only while none runs.

    Streams and jobs somebody started by hand are left alone.

    Returns:
        How many processes were killed.
    """
    abandoned = [process for process in stack_processes(home) if process.kind in _AIRFLOW_COMMAND]
    return len(kill_processes(with_descendants(abandoned)))


def main(arguments: list[str] | None = None) -> None:
    """Become `airflow <arguments>`; the process id stays."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["scheduler"]:
        home = StackHome.at(Path(os.environ["DELTAWORKS_HOME"]))
        if count := end_abandoned_workers(home):
            print(f"Ended {count} processes an earlier scheduler left behind.", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "airflow", *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
