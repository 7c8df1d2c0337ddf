"""The drivers of one stream under disturbance; a new one starts when none runs."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import FaultProject


class Fleet:
    """Keeps a driver running until it is closed. Paused drivers do not count, so that a successor starts."""

    def __init__(self, stage: FaultProject, *, endpoint: dict[str, str], off: Sequence[str] = ()) -> None:
        self._stage = stage
        self._endpoint = endpoint
        self._off = off
        #: Wall clock shift of drivers that start from now on.
        self.clock_seconds = 0.0
        self._lock = threading.RLock()
        self._running: list[Driver] = []
        self._paused: list[Driver] = []
        self._end = threading.Event()
        self.codes: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._keep, name="fleet", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._end.wait(0.5):
            with self._lock:
                self._forget_ended()
                if not self._running:
                    self.add()

    def _forget_ended(self) -> None:
        for group in (self._running, self._paused):
            for driver in list(group):
                if driver.process.poll() is not None:
                    self.codes[driver.process.returncode] += 1
                    group.remove(driver)

    def add(self) -> None:
        """Starts one more driver."""
        with self._lock:
            driver = Driver(
                self._stage,
                off=self._off,
                clock_seconds=self.clock_seconds,
                available_now=False,
                environment=self._endpoint,
            )
            self._running.append(driver)

    def add_second(self) -> bool:
        """Starts a second driver if one runs; returns whether one did."""
        with self._lock:
            self._forget_ended()
            met = bool(self._running)
            if met:
                self.add()
            return met

    def signal_all(self, number: int) -> bool:
        """Sends a signal to every process of all drivers; returns whether there was one."""
        with self._lock:
            self._forget_ended()
            for driver in [*self._running, *self._paused]:
                driver.signal(number)
            return bool(self._running or self._paused)

    def completed(self) -> list[float]:
        """Returns when batches were completed by any driver: monotonic seconds, ascending."""
        moments = []
        for timeline in self._stage.root.glob("driver-*.timeline"):
            lines = (line.split(" ", 2) for line in timeline.read_text().splitlines())
            moments += [float(parts[0]) for parts in lines if parts[-1] == "completed"]
        return sorted(moments)

    def last_completed(self) -> float:
        """Returns when the newest batch was completed; 0 before the first."""
        return max(self.completed(), default=0.0)

    def kill_part(self, name: str) -> bool:
        """Sends SIGKILL to the JVM (`java`) or a Python process of the driver that lands batches; returns whether there
        was one.
        """
        with self._lock:
            victims = self._processes(name)
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
            return bool(victims)

    def kill_worker(self) -> bool:
        """Sends SIGKILL to a Python worker of the driver that lands batches; returns whether there was one."""
        with self._lock:
            daemons = [p for p in self._descendants() if "pyspark.daemon" in " ".join(_command_of(p))]
            workers = [child for daemon in daemons for child in daemon.children()]
            for worker in workers[:1]:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            return bool(workers)

    def _processes(self, name: str) -> list[psutil.Process]:
        if name == "java":
            return [p for p in self._descendants() if p.name() == "java"]
        return [p for p in self._descendants() if any(part.endswith("entry.py") for part in _command_of(p)[1:2])]

    def _leader(self) -> Driver:
        """Returns the driver that last completed a batch, else the newest one."""
        return max(
            reversed(self._running),
            key=lambda driver: max((at for at, _, point in driver.points() if point == "completed"), default=0.0),
        )

    def _descendants(self) -> list[psutil.Process]:
        if not self._running:
            return []
        try:
            root = psutil.Process(self._leader().process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def pause(self) -> bool:
        """Freezes all running drivers, so that successors start; returns whether one ran."""
        with self._lock:
            self._forget_ended()
            met = bool(self._running)
            for driver in self._running:
                driver.signal(signal.SIGSTOP)
            self._paused += self._running
            self._running = []
            return met

    def resume(self) -> None:
        """Resumes frozen drivers. Each finds itself fenced, or continues as the owner."""
        with self._lock:
            for driver in self._paused:
                driver.signal(signal.SIGCONT)
            self._running = self._paused + self._running
            self._paused = []

    def close(self) -> None:
        """Kills all drivers with SIGKILL."""
        self._end.set()
        self._thread.join(timeout=10)
        with self._lock:
            for driver in [*self._running, *self._paused]:
                driver.__exit__()
            time.sleep(0.5)
            self._forget_ended()


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
