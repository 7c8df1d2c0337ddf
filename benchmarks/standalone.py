"""A standalone Spark cluster: a master and workers with one core each, as processes on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_START_TIMEOUT_SECONDS = 120.0


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, workers: int, memory: str) -> Iterator[str]:
    """Runs a cluster while the block runs and yields the master's address.

    Args:
        memory: memory of each worker, as Spark's option `--memory` expects it.
    """
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        address = _daemon(stack, "master", *local, ready=r"Starting Spark master at (spark://\S+)")
        for number in range(1, workers + 1):
            offers = ("--cores", "1", "--memory", memory, "--work-dir", str(folder / f"worker{number}"))
            _daemon(stack, "worker", *local, *offers, address, ready=r"Successfully registered with master (\S+)")
        yield address


def _daemon(stack: contextlib.ExitStack, role: str, *arguments: str, ready: str) -> str:
    """Starts a daemon and returns the part of its output that matches `ready`."""
    import pyspark

    home = Path(pyspark.__file__).parent
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}.{role.capitalize()}", *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stack.callback(_end, process)
    assert process.stdout is not None
    timer = threading.Timer(_START_TIMEOUT_SECONDS, process.kill)
    timer.start()
    try:
        answer = _first_match(process.stdout, ready)
    finally:
        timer.cancel()
    if answer is None:
        raise RuntimeError(f"the {role} did not start: it ended with {process.wait()}")
    # Reads later output as well, since a full pipe would block the daemon.
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return answer


def _first_match(lines: IO[str], pattern: str) -> str | None:
    for line in lines:
        if match := re.search(pattern, line):
            return match[1]
    return None


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(timeout=60)
