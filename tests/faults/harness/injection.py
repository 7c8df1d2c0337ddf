"""Faults inside a driver: at which points of a batch something happens, and what.

A driver is told by its environment. `DELTAWORKS_TEST_FAULTS` holds a JSON list of faults: at the `nth` time (1 is the
first) that a point matching the pattern is reached, the action is done, once. Every point reached is also written to a
timeline, with the machine's monotonic clock, which is one for all processes: so a test knows what was injected when,
and how long the stream took to land a batch again.

Points are those of `tests.batch_points` (`files_written`, `prepared`, `committed:<table>`, `committed`, `completed`),
and those that `install` adds: `leased`, `fenced`, `begun`, `gold_writing:<table>` and `gold_written:<table>`,
`checked:<table>` (the transaction was looked for in the snapshot, the commit has not been put) and `half_ledger` (steps
recorded, the batch not).
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
    """What happens at a point. Actions: kill, kill_python, kill_jvm, stop, sleep, raise, fill (the disk given).

    `kill` ends JVM and Python at once, as kill -9 of the process group does; `stop` freezes both (SIGSTOP). Points are
    counted once `after` has been reached: `begun` leaves out what a driver finishes for its predecessor.
    """

    point: str
    nth: int = 1
    action: str = "kill"
    after: str = ""
    seconds: float = 0.0
    path: str = ""


def as_variable(faults: Sequence[Fault]) -> str:
    """The environment variable's text."""
    return json.dumps([asdict(fault) for fault in faults])


class Injector:
    """The driver's side: call it with every point that is reached. Safe for several threads."""

    def __init__(self, faults: Sequence[Fault], timeline: Path) -> None:
        self._waiting = {fault: fault.nth for fault in faults}
        self._reached: set[str] = set()
        self._timeline = timeline.open("a")
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Injector:
        """As the test that started this driver says."""
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
    """Use up the last byte of a small disk."""
    with (folder / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    filler.write(b"x" * size)
                except OSError:
                    break


def install(fault: Callable[[str], None]) -> None:
    """Add points around our own functions, without a word in the product."""
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
    """In a worker: write the files of all tables, then be killed before telling anyone, the first time."""
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
    """In a task of a standalone cluster: write the files of all tables, then lose the machine, once a file `armed` is.

    Lost are the worker's daemon and everything it started, this process among it; the file is renamed to `.lost`.
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
