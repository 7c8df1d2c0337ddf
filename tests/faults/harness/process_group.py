"""A program in a separate process group, with logged output, that is killed completely at the end of its `with`
block."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from deltaworks.specs.catalog import PROJECT_ROOT

#: Path to the project's packages and its tests.
PYTHONPATH = f"{PROJECT_ROOT / 'include'}{os.pathsep}{PROJECT_ROOT}"


class ProcessGroup:
    """One run of a program. Leaving the `with` block kills it and all processes it started.

    Args:
        environment: variables added to this process's own, with the project on Python's path.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str], folder: Path = PROJECT_ROOT
    ) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to every process of the group."""
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def tail(self, lines: int = 25) -> str:
        """Returns the last lines of the output, for messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
