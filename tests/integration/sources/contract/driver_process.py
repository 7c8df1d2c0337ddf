"""The driver process of the contract tests: started on first use and restarted after it was killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyspark

from tests.waiting import PATIENCE_SECONDS

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[3]


@dataclass(slots=True)
class Drivers:
    """One driver at a time for the project in `root`."""

    root: Path
    variables: Mapping[str, str]
    pid: int = 0
    busy: bool = False
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def send(self, command: Mapping[str, Any]) -> None:
        """Sends it a command; `answer` waits for the result."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        self.busy = True

    def answer(self) -> dict[str, Any] | None:
        """Returns its answer, or None if it was killed."""
        process = self._running()
        line = _out(process).readline()
        self.busy = False
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        process.wait(PATIENCE_SECONDS)
        self._process = None
        return None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = self._start()
            ready = _out(self._process).readline()
            assert ready, self.log()
            self.pid = json.loads(ready)["ready"]
        return self._process

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))},
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "include"), str(CHECKOUT), str(HERE)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.root / "work"),
            "DELTAWORKS_PROJECT": str(self.root),
            **self.variables,
        }
        with (self.root / "driver.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "driver.py")],
                env=environment,
                cwd=self.root,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        """Returns the end of its output."""
        return (self.root / "driver.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Ends it with its JVM and workers."""
        process, self._process, busy, self.busy = self._process, None, self.busy, False
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if busy else 20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def _out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
