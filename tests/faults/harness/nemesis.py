"""Disturbs a running stream in a seeded random order. Every kind of disturbance occurs once before any repeats. A
disturbance without effect, because no driver ran or no request came, is repeated until it has one.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deltaworks.control import paths
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.fleet import Fleet

WRITES = r"/(_delta_log/\d{20}\.json|prepared/.*\.json|lease\.json|offsets/\d+|commits/\d+)(\?|$)"
MEET_SECONDS = 60.0
#: How long to wait for a batch before the next disturbance, so that most of them meet a working stream.
BATCH_SECONDS = 60.0
#: Usual seconds of a disturbance with the pause before it.
STRIKE_SECONDS = 45.0


@dataclass(frozen=True, slots=True)
class Strike:
    """A disturbance that took effect, and its start in monotonic seconds."""

    name: str
    at: float


@dataclass
class Nemesis:
    """Disturbs the drivers and the storage of a project; the seed determines every choice."""

    stage: FaultProject
    fleet: Fleet
    proxy: FaultProxy
    seed: int
    happened: list[Strike] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next: list[str] = []

    @property
    def disturbances(self) -> dict[str, Callable[[], bool]]:
        """Returns all disturbances by name; each function returns whether it took effect."""
        return {
            "kill driver": lambda: self.fleet.signal_all(signal.SIGKILL),
            "kill jvm alone": lambda: self.fleet.kill_part("java"),
            "kill python alone": lambda: self.fleet.kill_part("python"),
            "kill worker": self.fleet.kill_worker,
            "pause and wake": self._pause,
            "second driver": self.fleet.add_second,
            "clock jumps": self._jump,
            "lose replies": lambda: self._storage(Fault(action=Action.LOSE_REPLY, method="PUT", path=WRITES, every=3)),
            "slow storage": lambda: self._storage(Fault(action=Action.DELAY, delay_seconds=0.7, probability=0.3)),
            "refusing storage": lambda: self._storage(Fault(action=Action.UNAVAILABLE, probability=0.4)),
            "delete commits/N": self._delete_commit,
            "lose checkpoint": self._lose_checkpoint,
        }

    @property
    def missing(self) -> list[str]:
        """Returns the disturbances that have not occurred yet."""
        return sorted(set(self.disturbances) - {strike.name for strike in self.happened})

    def strike(self) -> str:
        """Runs the next disturbance until it takes effect; returns its name and result once it is over."""
        if not self._next:
            self._next = sorted(self.disturbances)
            self._random.shuffle(self._next)
        name = self._next.pop()
        end = time.monotonic() + MEET_SECONDS
        while time.monotonic() < end:
            at = time.monotonic()
            if self.disturbances[name]():
                self.happened.append(Strike(name, at))
                return name
            time.sleep(0.5)
        self._next.insert(0, name)
        return f"{name}: met nothing, comes up again"

    def rest(self, seconds_left: float) -> None:
        """Pauses before the next disturbance: mostly until a batch has landed, so that it meets a running stream.

        Adds some random seconds unless little time remains for the disturbances still missing.
        """
        hurry = seconds_left < STRIKE_SECONDS * len(self.missing)
        since = self.happened[-1].at if self.happened else 0.0
        if self._random.random() < 0.75 or hurry:
            end = time.monotonic() + BATCH_SECONDS
            while self.fleet.last_completed() <= since and time.monotonic() < end:
                time.sleep(0.5)
        time.sleep(1.0 if hurry else self._random.uniform(1, 15))

    def _pause(self) -> bool:
        met = self.fleet.pause()
        if met:
            time.sleep(self._random.uniform(2, 25))
            self.fleet.resume()
        return met

    def _jump(self) -> bool:
        self.fleet.clock_seconds = self._random.choice([-3600.0, 3600.0, 86_400.0])
        return self.fleet.signal_all(signal.SIGKILL)

    def _storage(self, fault: Fault) -> bool:
        before = len(self.proxy.incidents)
        self.proxy.faults = [fault]
        time.sleep(self._random.uniform(3, 15))
        end = time.monotonic() + MEET_SECONDS
        while len(self.proxy.incidents) == before and time.monotonic() < end:
            time.sleep(0.5)
        self.proxy.faults = []
        return len(self.proxy.incidents) > before

    def _checkpoint(self) -> list[str]:
        return self.stage.objects.list(paths.pipeline_control(PIPELINE, "checkpoints/g"))

    def _delete_commit(self) -> bool:
        commits = [key for key in self._checkpoint() if "/commits/" in key and key.rpartition("/")[2].isdigit()]
        newest = max(commits, key=lambda key: (key.split("/")[-3], int(key.rpartition("/")[2])), default=None)
        if newest is not None:
            self.fleet.signal_all(signal.SIGKILL)
            self.stage.objects.delete(newest)
        return newest is not None

    def _lose_checkpoint(self) -> bool:
        if not any("/offsets/" in key for key in self._checkpoint()):
            return False
        self.fleet.signal_all(signal.SIGKILL)
        for key in self._checkpoint():
            self.stage.objects.delete(key)
        return True
