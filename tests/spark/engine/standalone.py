"""A standalone Spark cluster in separate processes, without authentication or started by `docker/spark.sh` with a
secret.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.processes import run_process

SPARK_HOME = Path(pyspark.__file__).parent
STARTED_WITHIN_SECONDS = 180.0
SECRET_VARIABLE = "DELTAWORKS_SPARK_SECRET"


class Daemon:
    """A Spark daemon in its own process; `ready_line` matches its output once it is up."""

    def __init__(self, *command: str, ready_line: str, folder: Path, secret: str = "") -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PATH": f"{SPARK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(folder)}
        if secret:
            environment[SECRET_VARIABLE] = secret
        self._name = command[0]
        self._ready = ready_line
        self._said: list[str] = []
        self._found: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            match = re.search(self._ready, line)
            if match:
                self._found.put(match.group(1))

    @property
    def output(self) -> str:
        """Its output so far."""
        return "".join(self._said)

    @property
    def command_line(self) -> str:
        """The process's command line, readable by everyone on the machine."""
        return Path(f"/proc/{self._process.pid}/cmdline").read_text().replace("\0", " ")

    def wait(self) -> str:
        """Waits for `ready_line`; returns its match."""
        try:
            return self._found.get(timeout=STARTED_WITHIN_SECONDS)
        except queue.Empty:
            pytest.fail(f"{self._name} did not start:\n" + self.output)

    def kill(self) -> None:
        """Kills it, as if the machine was lost."""
        self._process.kill()

    @property
    def executors(self) -> list[psutil.Process]:
        """Its child processes."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait(timeout=30)
        self._reader.join(timeout=10)


@dataclass(frozen=True)
class Cluster:
    """A master with its workers."""

    address: str
    master: Daemon
    workers: list[Daemon]
    start_worker: Callable[[], Daemon]

    def add_worker(self) -> Daemon:
        """Adds a worker and waits until the master knows it."""
        worker = self.start_worker()
        worker.wait()
        self.workers.append(worker)
        return worker

    def state(self) -> dict[str, Any]:
        """The master's state of workers and applications."""
        page = re.search(r"MasterWebUI.* at (http://\S+)", self.master.output)
        assert page is not None, self.master.output
        with urllib.request.urlopen(f"{page[1]}/json/", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        return state


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g", secret: str = ""
) -> Iterator[Cluster]:
    """Runs a cluster in the block; with a secret, master and workers run as in containers.

    Args:
        cores: cores per worker.
        memory: memory per worker.
    """
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:

        def start(role: str, *arguments: str, ready: str) -> Daemon:
            name = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
            protected = ("bash", str(PROJECT_ROOT / "docker" / "spark.sh"), role)
            command = protected if secret else (str(SPARK_HOME / "bin" / "spark-class"), name)
            daemon = Daemon(*command, *arguments, ready_line=ready, folder=folder, secret=secret)
            return stack.enter_context(contextlib.closing(daemon))

        master = start("master", *local, ready=r"Starting Spark master at (spark://\S+)")
        address = master.wait()
        numbers = itertools.count(1)

        def start_worker() -> Daemon:
            offers = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"worker{next(numbers)}"))
            return start("worker", *local, *offers, address, ready=r"Successfully registered with master (\S+)")

        started = [start_worker() for _ in range(workers)]
        for worker in started:
            worker.wait()
        yield Cluster(address, master, started, start_worker)


def run_driver(
    script: Path, *arguments: str, secret: str = "", seconds: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs a Python driver script to its end."""
    path = os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)])
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    environment |= {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    if secret:
        environment[SECRET_VARIABLE] = secret
    return run_process([sys.executable, str(script), *arguments], env=environment, cwd=script.parent, timeout=seconds)
