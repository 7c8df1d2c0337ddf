"""Injects faults into a driver at given points of a batch.

Environment variables configure a driver. `DELTAWORKS_TEST_FAULTS` holds a JSON list of faults: the `nth` time (from 1)
a point that matches the pattern is reached, the action runs, once. Every reached point is also written to a timeline
with the machine's monotonic clock, which all processes share. Tests read from it when a fault was injected and how long
the stream took to land the next batch.

Points are those of `tests.batch_points` (`files_written`, `prepared`, `committed:<table>`, `committed`, `completed`)
and those that `install` adds: `leased`, `fenced`, `begun`, `gold_writing:<table>`, `gold_written:<table>`,
`checked:<table>` (after the look-up of the transaction in the snapshot, before the put of the commit) and `half_ledger`
(the steps are recorded, the batch is not).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAULTS = "DELTAWORKS_TEST_FAULTS"
TIMELINE = "DELTAWORKS_TEST_TIMELINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The action at a point: kill, kill_python, kill_jvm, stop, sleep, raise, or fill (a given disk).

    `kill` ends JVM and Python together, like SIGKILL to the process group; `stop` freezes both (SIGSTOP). Points count
        only
    once `after` has been reached: `begun` skips the batch that a driver completes for its predecessor.
    """

    point: str
    nth: int = 1
    action: str = "kill"
    after: str = ""
    seconds: float = 0.0
    path: str = ""


def as_variable(faults: Sequence[Fault]) -> str:
    """Returns the environment variable's value."""
    return json.dumps([asdict(fault) for fault in faults])


class Injector:
    """Injects faults inside a driver: call it with every reached point. Thread-safe."""

    def __init__(self, faults: Sequence[Fault], timeline: Path) -> None:
        self._waiting = {fault: fault.nth for fault in faults}
        self._reached: set[str] = set()
        self._timeline = timeline.open("a")
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Injector:
        """Reads the faults that the test configured for this driver."""
        faults = [Fault(**each) for each in json.loads(os.environ.get(FAULTS, "[]"))]
        return cls(faults, Path(os.environ[TIMELINE]))

    def __call__(self, point: str) -> None:
        due = []
        with self._lock:
            self._record(point)
            self._reached.add(point)
            for fault in list(self._waiting):
                if fault.after and fault.after not in self._reached:
                    continue
                if re.fullmatch(fault.point, point):
                    self._waiting[fault] -= 1
                    if self._waiting[fault] == 0:
                        del self._waiting[fault]
                        due.append(fault)
                        self._record(f"injected {fault.action} at {point}")
        for fault in due:
            _do(fault)

    def _record(self, text: str) -> None:
        self._timeline.write(f"{time.monotonic():.3f} {os.getpid()} {text}\n")
        self._timeline.flush()


def _do(fault: Fault) -> None:
    match fault.action:
        case "kill":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "kill_python":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill_jvm":
            os.kill(os.getppid(), signal.SIGKILL)
        case "stop":
            os.killpg(os.getpgrp(), signal.SIGSTOP)
        case "raise":
            raise OSError("a fault that a test injected")
        case "fill":
            _fill(Path(fault.path))
        case "sleep":
            pass
        case _:
            raise ValueError(fault.action)
    time.sleep(fault.seconds)


def _fill(folder: Path) -> None:
    """Fills a small disk to its last byte."""
    with (folder / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    filler.write(b"x" * size)
                except OSError:
                    break


def install(fault: Callable[[str], None]) -> None:
    """Wraps product functions so that they report points."""
    from deltalake import DeltaTable

    from deltaworks.control.locks.lease import Lease
    from deltaworks.engine import ledger, table_set
    from deltaworks.gold import table_build
    from deltaworks.sources.objects import source as files

    _after(Lease, "acquire", lambda *_: fault("leased"))
    _after(table_set.TableSet, "fence", lambda *_: fault("fenced"))
    _after(ledger.Ledger, "_append", lambda _, name, *__: name == ledger.BATCH_METADATA_STORE and fault("half_ledger"))
    _before(files.FileSource, "slice_of", lambda *_: fault("begun"))
    _before(table_build, "write_answer", lambda _, __, job, ___: fault(f"gold_writing:{job.plan.table.name}"))
    _after(table_build, "write_answer", lambda _, __, job, ___: fault(f"gold_written:{job.plan.table.name}"))
    _before(
        DeltaTable,
        "create_write_transaction",
        lambda table, *_: fault(f"checked:{table.table_uri.rstrip('/').rpartition('/')[2]}"),
    )


def _after(owner: Any, name: str, also: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def wrapped(*positional: Any, **named: Any) -> Any:
        result = original(*positional, **named)
        also(*positional)
        return result

    setattr(owner, name, wrapped)


def _before(owner: Any, name: str, also: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def wrapped(*positional: Any, **named: Any) -> Any:
        also(*positional)
        return original(*positional, **named)

    setattr(owner, name, wrapped)


def write_and_die_once(payloads: Any, spec: Any, stamp: Any, target: Any, **options: Any) -> Any:
    """Writes the files of all tables in a worker and kills the worker before it returns them; only the first time."""
    from deltaworks.engine.fan_out import write_payloads

    written = write_payloads(payloads, spec, stamp, target, **options)
    marker = Path(os.environ[TIMELINE]).with_suffix(".worker_killed")
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return written
    sys.stderr.write("the worker is killed after it has written its files\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return written


def write_and_lose_the_worker(armed: Path, payloads: Any, spec: Any, stamp: Any, target: Any, **options: Any) -> Any:
    """Writes the files of all tables in a task of a standalone cluster, then kills the worker machine if a file `armed`
    exists.

    Kills the worker's daemon and everything it started, including this process, and renames the file to `.lost`.
    """
    import psutil

    from deltaworks.engine.fan_out import write_payloads

    written = write_payloads(payloads, spec, stamp, target, **options)
    try:
        armed.rename(armed.with_suffix(".lost"))
    except FileNotFoundError:
        return written
    ancestors = psutil.Process().parents()
    worker = next(process for process in ancestors if "deploy.worker.Worker" in " ".join(process.cmdline()))
    others = [worker, *(process for process in worker.children(recursive=True) if process.pid != os.getpid())]
    for process in others:
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
    return written
