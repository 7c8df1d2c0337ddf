"""Soak test: a stream under continuous load and random disturbances for minutes, with a check of all rows at the end.

`make soak MINUTES=20`. Prints each disturbance, and at the end for each kind how often it took effect and how soon a
batch was completed again; events per second, landing to bronze at the 50th and 99th percentile, lost and doubled, the
seed and the machine. Ends with `1 passed, 0 failed` or the opposite; also fails if a disturbance never took effect.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from deltaworks.control.home import PipelineHome
from sandbox.servers.fault_proxy import running_fault_proxy
from sandbox.servers.object_store import running_object_store
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject, open_project
from tests.faults.harness.fleet import Fleet
from tests.faults.harness.landing_times import bronze_times, percentile
from tests.faults.harness.load import Load
from tests.faults.harness.nemesis import Nemesis
from tests.faults.harness.oracle import commits_after_takeover, judge

FINISH_SECONDS = 600.0
#: Time by which a short soak may exceed its minutes, so that every disturbance occurs.
LONGER = 900.0


def finish(stage: FaultProject) -> None:
    """Lets undisturbed drivers land the rest, and resumes tables that were held."""
    end = time.monotonic() + FINISH_SECONDS
    while True:
        for table in PipelineHome(stage.objects, PIPELINE).held.read():
            print(f"{table} is held: it is resumed", flush=True)
            PipelineHome(stage.objects, PIPELINE).held.request_resume(table, by="soak")
        with Driver(stage) as driver:
            if driver.wait(FINISH_SECONDS) == 0 and not PipelineHome(stage.objects, PIPELINE).held.read():
                return
            assert time.monotonic() < end, driver.tail()


def run(nemesis: Nemesis, load: Load, *, minutes: float) -> None:
    """Disturbs the stream for the given time, and longer until every disturbance has occurred."""
    began = time.monotonic()
    end = began + minutes * 60
    while load.failure is None and (time.monotonic() < end or (nemesis.missing and time.monotonic() < end + LONGER)):
        nemesis.rest(max(0.0, end - time.monotonic()))
        if time.monotonic() < end or nemesis.missing:
            at = time.monotonic() - began
            print(f"{at:7.1f} s  {nemesis.strike()}", flush=True)


def print_disturbances(nemesis: Nemesis, fleet: Fleet) -> list[float]:
    """Prints a line for each kind: its number, and the seconds until the next completed batch."""
    completed = fleet.completed()
    everything: list[float] = []
    for name in sorted(nemesis.disturbances):
        moments = [strike.at for strike in nemesis.happened if strike.name == name]
        found = (next((done - at for done in completed if done > at), None) for at in moments)
        known = [seconds for seconds in found if seconds is not None]
        everything += known
        took = f"next batch after {statistics.median(known):.1f} s, at most {max(known):.1f} s" if known else "-"
        print(f"{name:18} {len(moments)} times, {took}")
    return everything


def report(stage: FaultProject, nemesis: Nemesis, load: Load, fleet: Fleet, *, off: Sequence[str]) -> bool:
    """Prints the result; returns whether it is as expected: exact, or damaged without a protection."""
    names = ["events", *stage.kinds]
    verdict = judge(stage.lake, PIPELINE, names, stage.owed)
    late = commits_after_takeover(stage.lake, PIPELINE, names)
    readable = bronze_times(stage)
    waits = [readable[seq] - landed for seq, landed in enumerate(load.landed_at, start=1) if seq in readable]
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
    minutes, pace = load.seconds / 60, stage.ids / load.seconds
    recoveries = print_disturbances(nemesis, fleet)
    print(f"requests to storage tampered with {len(nemesis.proxy.incidents)}; exit codes {dict(fleet.codes)}")
    print(f"landing to bronze p50 {percentile(waits, 0.5):.1f} s, p99 {percentile(waits, 0.99):.1f} s")
    recovery = f"{statistics.median(recoveries):.1f} s, at most {max(recoveries):.1f} s" if recoveries else "-"
    print(
        f"SOAK {'WITHOUT ' + ', '.join(off) if off else 'protected'} | seed {stage.seed} | {minutes:.1f} min | "
        f"{machine} | s3proxy | {stage.tables} tables | ids {stage.ids} | {pace:.0f} events/s | "
        f"{len(nemesis.happened)} disturbances | {verdict} | late commits {late} | recovery {recovery}",
        flush=True,
    )
    if load.failure is not None:
        print(f"the load ended early: {load.failure}")
    if nemesis.missing:
        print(f"never came up: {', '.join(nemesis.missing)}")
    if load.failure is not None or nemesis.missing:
        return False
    return bool(verdict.doubled or verdict.lost) if off else verdict.is_exact and late == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261121")))
    parser.add_argument("--events-per-second", type=int, default=300)
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--off", nargs="*", default=[], help="protections taken away: harm is then what must be seen")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="deltaworks-soak-", ignore_cleanup_errors=True)
        work = Path(stack.enter_context(folder))
        server = stack.enter_context(running_object_store(work / "s3", buckets=["deltaworks-lake"]))
        proxy = stack.enter_context(running_fault_proxy(server.endpoint, seed=options.seed))
        stage = stack.enter_context(
            open_project(work / "stage", seed=options.seed, tables=options.tables, server=server, spark_tables=("k01",))
        )
        stage.declare(source={"max_files_per_batch": 200}, stream={"lease_ttl_seconds": 5})
        chance, per_kind = random.Random(options.seed), max(1, options.events_per_second // len(stage.kinds))
        # Some objects are announced more than once.
        load = Load(lambda: stage.land(per_kind=per_kind, copies=chance.choice([1, 1, 1, 3])))
        fleet = Fleet(stage, endpoint=server.environment(endpoint=proxy.endpoint), off=options.off)
        nemesis = Nemesis(stage, fleet, proxy, options.seed)
        try:
            run(nemesis, load, minutes=options.minutes)
        finally:
            load.close()
            proxy.faults = []
            fleet.close()
        finish(stage)
        passed = report(stage, nemesis, load, fleet, off=options.off)
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
