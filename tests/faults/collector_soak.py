"""Soak test of a collector that receives twice the input its sink accepts, with an unreachable, slow and refusing sink.

`make soak COLLECTOR=1 MINUTES=20`. The collector is also killed and stopped. Every acknowledged event must be in bronze
once, or in quarantine once if it is malformed, and event numbers must have no gaps. Prints the disturbances and, at the
end, the events sent and delivered, and `1 passed, 0 failed` or the opposite. Also fails if a disturbance met no
traffic, or if less than twice the sink's capacity was sent.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil

from sandbox.servers.fault_proxy import Action, Fault
from tests.faults.harness.collector_harness import KEY, CollectorHarness, collector_harness
from tests.faults.harness.collector_lake import CollectorLake, check_collected
from tests.waiting import eventually

SENDERS = 4
BATCH = 20
CLOSE_BYTES = 64 << 10
#: Size of an event in an object with its metadata. With the delay of every put it determines the sink's rate.
EVENT_BYTES = 480
PUT_SECONDS = 0.5
#: More than twice, since a sender that was turned away waits.
TIMES = 2.6
SINK = Fault(action=Action.DELAY, method="PUT", delay_seconds=PUT_SECONDS)
FAULTS = {
    "replies cut off": Fault(action=Action.LOSE_REPLY, method="PUT", every=2),
    "sink slowed": Fault(action=Action.DELAY, method="PUT", delay_seconds=3 * PUT_SECONDS),
    "sink refuses": Fault(action=Action.UNAVAILABLE, method="PUT", every=2),
    "sink away": Fault(action=Action.UNAVAILABLE, method="PUT"),
}


class Senders:
    """Posts batches at a given rate, some with a malformed event, and records the responses."""

    def __init__(self, harness: CollectorHarness, *, events_per_second: float) -> None:
        self.answered: set[str] = set()
        self.sent: set[str] = set()
        self.refused: Counter[str] = Counter()
        self._stage = harness
        self._pause = BATCH * SENDERS / events_per_second
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stops sending."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, sender: int) -> None:
        number, due = sender, time.monotonic()
        with httpx2.Client(auth=(KEY, ""), timeout=30) as client:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                due = max(due + self._pause, time.monotonic() - self._pause)
                ids = [f"e{number}-{place}" for place in range(BATCH)]
                events = [json.dumps({"name": "order", "event_id": event, "pad": "x" * 100}) for event in ids]
                if number % 10 == 0:
                    ids[-1] = f"broken-{number}-id"
                    events[-1] = f'{{"name": "order", "event_id": "{ids[-1]}", "pad": '
                number += SENDERS
                code = self._post(client, "\n".join(events))
                with self._lock:
                    self.sent |= set(ids)
                    if code:
                        self.refused[code] += 1
                    else:
                        self.answered |= set(ids)

    def _post(self, client: httpx2.Client, lines: str) -> str:
        """Returns the error code of the response; empty if the events were accepted."""
        headers = {"content-type": "application/x-ndjson"}
        try:
            answer = client.post(f"{self._stage.url}/v1/events", content=lines, headers=headers)
        except httpx2.TransportError:
            return "cut"
        return "" if answer.status_code == 200 else str(answer.json()["code"])


class Soak:
    """Disturbs a harness, seeded: each disturbance runs once, in random order, before any repeats."""

    def __init__(self, harness: CollectorHarness, seed: int) -> None:
        self.met: Counter[str] = Counter()
        self._stage = harness
        self._chance = random.Random(seed)
        self._next: list[str] = []
        self.disturbances: dict[str, Callable[[], bool]] = {
            **{name: lambda name=name: self._fault(FAULTS[name]) for name in FAULTS},  # type: ignore[misc]
            "killed": lambda: self._again(signal.SIGKILL),
            "stopped": lambda: self._again(signal.SIGTERM),
        }

    def run(self, seconds: float) -> None:
        """Disturbs for the given time, and longer until every disturbance met traffic."""
        began = time.monotonic()
        end = began + seconds
        while time.monotonic() < end or self.missing:
            assert time.monotonic() < end + 600, f"never came up: {self.missing}"
            self._next = self._next or self._chance.sample(sorted(self.disturbances), len(self.disturbances))
            name = self._next.pop()
            met = self.disturbances[name]()
            self.met[name] += met
            print(f"{time.monotonic() - began:7.1f} s  {name}{'' if met else ': met nothing'}", flush=True)
            time.sleep(self._chance.uniform(1, 4))

    @property
    def missing(self) -> list[str]:
        """Returns the disturbances that met no traffic."""
        return [name for name in self.disturbances if not self.met[name]]

    def _fault(self, fault: Fault) -> bool:
        before = len(self._stage.proxy.incidents)
        self._stage.proxy.faults = [fault, SINK]
        time.sleep(self._chance.uniform(4, 12))
        self._stage.proxy.faults = [SINK]
        return any(incident.action is fault.action for incident in self._stage.proxy.incidents[before:])

    def _again(self, number: int) -> bool:
        self._stage.end(number)
        self._stage.start()
        return True


def soak(root: Path, *, minutes: float, seed: int, spool_bytes: str) -> bool:
    """Runs one soak; returns whether all checks passed."""
    sink_rate = CLOSE_BYTES / EVENT_BYTES / PUT_SECONDS
    with collector_harness(root, spool_bytes=spool_bytes, close_bytes=str(CLOSE_BYTES)) as harness:
        lake = CollectorLake(harness)
        harness.proxy.faults = [SINK]
        harness.start()
        senders, disturbing, began = (
            Senders(harness, events_per_second=TIMES * sink_rate),
            Soak(harness, seed),
            time.monotonic(),
        )
        try:
            disturbing.run(minutes * 60)
        finally:
            senders.end()
        seconds = time.monotonic() - began
        lake.read()
        delivered = lake.events_read
        harness.proxy.faults = ()
        harness.post()  # a heartbeat behind all others says that nothing is left
        eventually(lambda: harness.heartbeat().get("oldest_at") is None, "the spool is delivered", seconds=900)
        assert harness.end() == 0
        lake.read()
        sent, answered = senders.sent | harness.acknowledged, senders.answered | harness.acknowledged
        return report(lake, disturbing, senders, answered, sent, seconds=seconds, delivered=delivered, seed=seed)


def report(
    lake: CollectorLake,
    disturbing: Soak,
    senders: Senders,
    answered: set[str],
    sent: set[str],
    *,
    seconds: float,
    delivered: int,
    seed: int,
) -> bool:
    """Prints the result."""
    bronze, quarantine = lake.in_bronze(), lake.in_quarantine()
    verdict = check_collected(answered, sent, [*bronze, *quarantine])
    gaps = [process for process, seqs in lake.numbers().items() if seqs != list(range(1, len(seqs) + 1))]
    misplaced = [event for event in bronze if event.startswith("broken")]
    ratio = len(sent) / max(1, delivered)
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
    for name, times in sorted(disturbing.met.items()):
        print(f"{name:18} {times} times")
    print(
        f"COLLECTOR SOAK | seed {seed} | {seconds / 60:.1f} min | {machine} | "
        f"offered {len(sent) / seconds:.0f} events/s, delivered {delivered / seconds:.0f}, {ratio:.1f} times | "
        f"answered {len(answered)} | batches turned away {dict(senders.refused)} | "
        f"bronze {len(bronze)}, quarantine {len(quarantine)} | {verdict} | gaps {len(gaps)}",
        flush=True,
    )
    return verdict.is_exact and not gaps and not misplaced and bool(quarantine) and ratio >= 2


def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261121")))
    parser.add_argument(
        "--spool-bytes", default="32MiB", help="a quota that is reached, so that senders are turned away"
    )
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # the bucket's server would print every request
    with tempfile.TemporaryDirectory(prefix="deltaworks-soak-", ignore_cleanup_errors=True) as folder:
        passed = soak(Path(folder), minutes=options.minutes, seed=options.seed, spool_bytes=options.spool_bytes)
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
