"""Runs a stream that a good and a hostile producer share, and measures the good producer's landing times.

moto as landing side, s3proxy as lake, the relay and the driver with its workers are separate processes. The two
producers are threads of this process. In the first phase only the good producer sends. In the second the hostile one
sends every kind of its objects and messages. In the third it sends objects that kill the workers that read them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from sandbox.servers.landing import LANDING_BUCKET, is_wired, landing_client, queue_url
from sandbox.stack.ports import HOST
from tests.faults.harness import crashing_objects, hostile_objects, worker_daemon
from tests.faults.harness.bucket_project import BucketProject
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, RELAY, FaultProject
from tests.faults.harness.file_protections import FILE_PROTECTIONS
from tests.faults.harness.hostile_objects import KINDS, HostileObject
from tests.faults.harness.hostile_verdict import HostileVerdict, accounted_numbers, judge_both, sequence_numbers
from tests.faults.harness.landing_times import bronze_times
from tests.faults.harness.load import Load
from tests.faults.harness.process_group import ProcessGroup
from tests.unit.sources.conftest import KEYS, Landing
from tests.waiting import eventually

#: Each phase's share of the time.
USUAL, HOSTILE, DEADLY = "usual", "hostile", "deadly"
SHARES = {USUAL: 0.3, HOSTILE: 0.45, DEADLY: 0.25}
#: Declaration of a source that accepts objects of any producer.
SOURCE = {
    "max_object_bytes": "128MiB",
    "max_event_bytes": "1MiB",
    "max_files_per_batch": 100,
    "budget": {"max_records": 20_000, "max_partitions": 100},
}
STREAM = {
    "trigger_seconds": 1,
    "lease_ttl_seconds": 20,
    "tasks_per_batch": 2,
    "object_timeout_seconds": 10,
    "task_memory": "1g",
    "crashes_per_object": 2,
}
_WARM_UP_SECONDS = 15.0
_SETTLE_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """Result of a run. `waits` are seconds from landing to bronze of the good producer's objects, by phase."""

    waits: dict[str, list[float]]
    fates: HostileVerdict
    owners: tuple[Heartbeat, Heartbeat] | None
    seconds: float
    good_objects: int
    messages: int
    failures: list[str] = field(default_factory=list)


@contextmanager
def landing_side(stage: FaultProject) -> Iterator[Landing]:
    """Starts a moto server as a separate process, with bucket, queue and notifications as on AWS."""
    os.environ.update(KEYS)
    with socket.socket() as chosen:
        chosen.bind((HOST, 0))
        port = chosen.getsockname()[1]
    endpoint, keys = f"http://{HOST}:{port}", {"access_key": "testing", "secret_key": "testing"}
    log = stage.root / "requests.log"
    command = [sys.executable, "-m", "sandbox.servers.moto_server", "--port", str(port), "--request-log", str(log)]
    with ProcessGroup(command, log=stage.root / "moto.log", environment={}):
        eventually(lambda: is_wired(endpoint=endpoint, **keys), "the landing side serves")
        clients = {service: landing_client(service, endpoint=endpoint, **keys) for service in ("s3", "sqs")}
        yield Landing(endpoint, LANDING_BUCKET, queue_url(endpoint), stage.storage, **clients)


class HostileRun:
    """One run. `off` names protections that the driver or its workers run without."""

    def __init__(
        self,
        stage: FaultProject,
        landing: Landing,
        *,
        off: Sequence[str] = (),
        hostile_every_seconds: float = 2.0,
        deadly_every_seconds: float = 40.0,
        tell: Callable[[str], None] = print,
    ) -> None:
        stage.declare(source=SOURCE, stream=STREAM)
        BucketProject(stage, landing, landing.endpoint)
        self._stage = stage
        self._landing = landing
        self._off = off
        self._every = {HOSTILE: hostile_every_seconds, DEADLY: deadly_every_seconds}
        self._tell = tell
        self._phase = "warm-up"
        self._landed: dict[str, tuple[str, float]] = {}
        self._hostile: dict[str, HostileObject] = {}
        self._messages = 0
        self._number = 0

    def run(self, minutes: float) -> Outcome:
        """Runs all phases, waits until every object is accounted for or a time limit is over, and returns the
        outcome."""
        hostile_objects.make_ready()
        workers = [name for name in self._off if name in FILE_PROTECTIONS]
        environment = {worker_daemon.OFF: " ".join(workers), crashing_objects.ARMED: "1"}
        driver_off = [name for name in self._off if name not in FILE_PROTECTIONS]
        with (
            self._relay() as relay,
            Driver(self._stage, off=driver_off, available_now=False, environment=environment) as driver,
        ):
            good = Load(self._land_good)
            try:
                before = self._warmed_up(driver)
                began = time.monotonic()
                for phase, share in SHARES.items():
                    self._pass(phase, share * minutes * 60, driver, good)
            finally:
                good.close()
            self._await_accounted(driver)
            seconds = time.monotonic() - began
            after = self._heartbeat()
            failures = [f"the good producer failed: {good.failure!r}"] if good.failure else []
            for name, group in {"relay": relay, "driver": driver}.items():
                if group.process.poll() is not None:
                    failures.append(f"the {name} has ended with {group.process.returncode}: {group.tail(6)}")
        return Outcome(
            waits=self._waits(),
            fates=judge_both(self._stage.lake, ["events", *self._stage.kinds], self._stage.owed, self._hostile),
            owners=(before, after) if before is not None and after is not None else None,
            seconds=seconds,
            good_objects=len(self._landed),
            messages=self._messages,
            failures=failures,
        )

    def _relay(self) -> ProcessGroup:
        command = [sys.executable, "-m", "deltaworks.sources.objects.relay", "--relay", RELAY]
        return ProcessGroup(command, log=self._stage.root / "relay.log", environment=self._stage.environment())

    def _heartbeat(self) -> Heartbeat | None:
        return read_heartbeat(self._stage.objects, paths.heartbeat(paths.pipeline_control(PIPELINE)))

    def _warmed_up(self, driver: Driver) -> Heartbeat | None:
        driver.await_point("completed")
        time.sleep(_WARM_UP_SECONDS)
        return self._heartbeat()

    def _pass(self, phase: str, seconds: float, driver: Driver, good: Load) -> None:
        """Runs one phase; ends early if nothing remains to measure."""
        self._phase = phase
        end = time.monotonic() + seconds
        self._tell(f"{phase}: {seconds:.0f} s")
        due = time.monotonic()
        while time.monotonic() < end and driver.process.poll() is None and good.failure is None:
            if phase in self._every and time.monotonic() >= due:
                due += self._every[phase]
                self._land_hostile(phase)
            time.sleep(0.05)

    def _land_good(self) -> None:
        lines = []
        for kind in self._stage.kinds * 10:
            lines.append(self._stage.event(kind))
            for table in (kind, "events"):
                self._stage.owed[table, lines[-1]["id"]] += 1
        key = f"good/{len(self._landed):06d}.json"
        self._landing.put(key, body="\n".join(json.dumps(line) for line in lines).encode())
        self._landed[key] = (self._phase, time.time())

    def _land_hostile(self, phase: str) -> None:
        self._number += 1
        kinds = list(KINDS)
        if phase == DEADLY:
            made = hostile_objects.deadly(self._number)
        else:
            made = KINDS[kinds[self._number % len(kinds)]](self._number)
            if self._number % len(kinds) == 1:
                bodies = hostile_objects.messages(self._landing.bucket, self._number)
                self._landing.send(*bodies)
                self._messages += len(bodies)
        key = f"hostile/{self._number:06d}{made.suffix}"
        self._landing.put(key, body=made.body)
        self._hostile[key] = made
        if made.is_deleted:
            self._landing.s3.delete_object(Bucket=self._landing.bucket, Key=key)

    def _await_accounted(self, driver: Driver) -> None:
        """Waits until every sent object has a row, or the time limit is over."""
        self._tell("nothing more is sent")
        sent = [*self._landed, *self._hostile]
        end = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < end and driver.process.poll() is None:
            numbers, rows = sequence_numbers(self._stage.lake), accounted_numbers(self._stage.lake)
            if self._landing.waiting() == (0, 0) and all(numbers.get(key) in rows for key in sent):
                return
            time.sleep(2.0)

    def _waits(self) -> dict[str, list[float]]:
        readable, numbers = bronze_times(self._stage), sequence_numbers(self._stage.lake)
        waits: dict[str, list[float]] = {phase: [] for phase in SHARES}
        for key, (phase, landed_at) in self._landed.items():
            seq = numbers.get(key, -1)
            if phase in waits and seq in readable:
                waits[phase].append(readable[seq] - landed_at)
        return waits


def is_one_owner(owners: tuple[Heartbeat, Heartbeat] | None) -> bool:
    """Returns whether the stream kept its process and owner epoch since before the hostile producer started."""
    return owners is not None and _identity(owners[0]) == _identity(owners[1])


def _identity(heartbeat: Heartbeat) -> tuple[Any, ...]:
    return heartbeat.pid, heartbeat.epoch, heartbeat.started_at
