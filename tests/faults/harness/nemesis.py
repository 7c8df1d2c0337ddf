"""Disturbs a running stream at random, by a seed: each disturbance by its name, and when it happened."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deltaworks.control import paths
from deltaworks.local.fault_proxy import Action, Fault, FaultProxy
from tests.faults.harness.fleet import Fleet
from tests.faults.harness.stage import PIPELINE, Stage

WRITES = r"/(_delta_log/\d{20}\.json|prepared/.*\.json|lease\.json|offsets/\d+|commits/\d+)(\?|$)"


@dataclass
class Nemesis:
    """What happens to the fleet and the storage of a stage. Its answers are all given by the seed."""

    stage: Stage
    fleet: Fleet
    proxy: FaultProxy
    seed: int
    happened: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def disturbances(self) -> dict[str, Callable[[], object]]:
        """Everything it may do, by name."""
        return {
            "kill driver": lambda: self.fleet.signal_all(signal.SIGKILL),
            "kill jvm alone": lambda: self.fleet.kill_part("java"),
            "kill python alone": lambda: self.fleet.kill_part("python"),
            "kill worker": self.fleet.kill_worker,
            "pause and wake": self._pause,
            "second driver": self.fleet.add,
            "lose replies": lambda: self._storage(Fault(action=Action.LOSE_REPLY, method="PUT", path=WRITES, every=3)),
            "slow storage": lambda: self._storage(Fault(action=Action.DELAY, delay_seconds=0.7, probability=0.3)),
            "refusing storage": lambda: self._storage(Fault(action=Action.UNAVAILABLE, probability=0.4)),
            "delete commits/N": self._delete_commit,
            "lose checkpoint": self._lose_checkpoint,
        }

    def strike(self) -> str:
        """Do one thing; returns its name once it is over."""
        name = self._random.choice(sorted(self.disturbances))
        self.happened.append((time.time(), name))
        self.disturbances[name]()
        return name

    def rest(self) -> float:
        """Seconds until the next."""
        return self._random.uniform(10, 45)

    def _pause(self) -> None:
        self.fleet.pause()
        time.sleep(self._random.uniform(2, 25))
        self.fleet.wake()

    def _storage(self, fault: Fault) -> None:
        self.proxy.faults = [fault]
        time.sleep(self._random.uniform(3, 15))
        self.proxy.faults = []

    def _checkpoint(self) -> list[str]:
        return self.stage.objects.list(paths.pipeline_control(PIPELINE, "checkpoints/g"))

    def _delete_commit(self) -> None:
        self.fleet.signal_all(signal.SIGKILL)
        commits = [key for key in self._checkpoint() if "/commits/" in key and key.rpartition("/")[2].isdigit()]
        newest = max(commits, key=lambda key: (key.split("/")[-3], int(key.rpartition("/")[2])), default=None)
        if newest is not None:
            self.stage.objects.delete(newest)

    def _lose_checkpoint(self) -> None:
        self.fleet.signal_all(signal.SIGKILL)
        for key in self._checkpoint():
            self.stage.objects.delete(key)
