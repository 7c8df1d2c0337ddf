"""Soak test of a hostile producer: its objects must not affect the events of a good producer on the same stream.

`make soak HOSTILE=1 MINUTES=10`. Prints the outcome of each kind of hostile object, the quarantine reasons, and the
    good
producer's times from landing to bronze: alone, next to the hostile producer, and next to objects that kill workers.
Ends with `1 passed, 0 failed` or the opposite.

Fails if an event of the good producer is lost, doubled or in quarantine; if a hostile object is neither in quarantine
with a reason nor landed as a slow reader counts it; if the stream was restarted; or if events take longer than twice
the usual time. The time limit does not apply to objects that kill workers: their batch is re-read one task at a time,
and a stall has to time out. That cost is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from sandbox.servers.object_store import running_object_store
from tests.faults.harness.fault_project import open_project
from tests.faults.harness.hostile_run import DEADLY, HOSTILE, USUAL, HostileRun, Outcome, is_one_owner, landing_side
from tests.faults.harness.hostile_verdict import HostileVerdict
from tests.faults.harness.landing_times import percentile

#: Highest allowed time, as a multiple of the usual one.
MOST_TIMES = 2.0
_SHARES = {"median": 0.5, "p95": 0.95}
console = Console(width=150, highlight=False)


def objects_listing(fates: HostileVerdict) -> Table:
    """Returns a line for each kind of object."""
    table = Table("hostile object", "sent", "rows landed", "in quarantine, by reason", "unaccounted")
    for kind, count in fates.objects.items():
        reasons = {reason: rows for (of_kind, reason), rows in fates.reasons.items() if of_kind == kind}
        said = ", ".join(f"{reason} {rows:,}" for reason, rows in sorted(reasons.items()))
        table.add_row(kind, str(count), f"{fates.landed[kind]:,}", said or "-", str(fates.unaccounted[kind] or "-"))
    return table


def times_listing(outcome: Outcome) -> Table:
    """Returns a line for each phase: landing times of the good producer's objects, and their ratio to the usual
    ones."""
    table = Table(
        "good producer, landing to bronze", "objects", "median", "p95", "longest", "median / usual", "p95 / usual"
    )
    for phase, waits in outcome.waits.items():
        table.add_row(
            {USUAL: "usual", HOSTILE: "beside hostile objects", DEADLY: "beside objects that kill workers"}[phase],
            str(len(waits)),
            *(f"{percentile(waits, share):.1f} s" for share in _SHARES.values()),
            f"{max(waits, default=float('nan')):.1f} s",
            *(f"{ratio:.2f}" for ratio in ratios(outcome, phase).values()),
        )
    return table


def ratios(outcome: Outcome, phase: str) -> dict[str, float]:
    """Returns the ratio of a phase's time to the usual one, at the median and the 95th percentile."""
    return {
        name: percentile(outcome.waits[phase], share) / percentile(outcome.waits[USUAL], share)
        for name, share in _SHARES.items()
    }


def misses(outcome: Outcome) -> list[str]:
    """Returns the expectations that were not met."""
    fates = outcome.fates
    missed = list(outcome.failures)
    for name, count in {
        "lost": fates.lost.total(),
        "doubled": fates.doubled.total(),
        "in quarantine": fates.good_in_quarantine.total(),
    }.items():
        if count:
            missed.append(f"{count} rows of the good producer are {name}")
    missed += [f"{key}: {said}" for key, said in fates.wrong.items()]
    if fates.messages.total() != outcome.messages:
        missed.append(f"of {outcome.messages} hostile messages {fates.messages.total()} are kept with a reason")
    if not is_one_owner(outcome.owners):
        missed.append("the stream is not the process, or not under the epoch, that it was")
    for name, ratio in ratios(outcome, HOSTILE).items():
        if not ratio <= MOST_TIMES:
            missed.append(f"the {name} beside hostile objects is {ratio:.2f} times the usual one")
    return missed


def report(outcome: Outcome, *, seed: int, ids: int, off: Sequence[str]) -> bool:
    """Prints the result; returns whether it is as expected: exact, or damaged without a protection."""
    fates = outcome.fates
    console.print(objects_listing(fates), markup=False)
    console.print(times_listing(outcome), markup=False)
    for said in (missed := misses(outcome)):
        console.print(f"MISS {said}", markup=False, soft_wrap=True)
    messages = ", ".join(f"{problem} {count}" for problem, count in sorted(fates.messages.items())) or "-"
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
    owner = "-" if outcome.owners is None else f"pid {outcome.owners[1].pid}, epoch {outcome.owners[1].epoch}"
    facts = [
        f"HOSTILE {'WITHOUT ' + ', '.join(off) if off else 'protected'}",
        f"seed {seed}",
        f"{outcome.seconds / 60:.1f} min",
        f"{machine}, load {os.getloadavg()[1]:.1f}",
        "s3proxy, moto",
        f"good: {outcome.good_objects} objects, ids {ids}, lost {fates.lost.total()}, doubled {fates.doubled.total()}, "
        f"in quarantine {fates.good_in_quarantine.total()}",
        f"hostile: {fates.objects.total()} objects, unaccounted {len(fates.wrong)}",
        f"messages {outcome.messages}, kept: {messages}",
        f"{'the same' if is_one_owner(outcome.owners) else 'ANOTHER'} owner: {owner}",
        f"misses {len(missed)}",
    ]
    console.print(" | ".join(facts), markup=False, soft_wrap=True)
    return bool(missed) if off else not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261121")))
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--hostile-every-seconds", type=float, default=2.0)
    parser.add_argument("--deadly-every-seconds", type=float, default=40.0)
    parser.add_argument("--off", nargs="*", default=[], help="protections taken away: harm is then what must be seen")
    parser.add_argument("--work", type=Path, help="a folder that is kept, instead of one that is removed")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="deltaworks-soak-", ignore_cleanup_errors=True)
        work = options.work or Path(stack.enter_context(folder))
        server = stack.enter_context(running_object_store(work / "s3", buckets=["deltaworks-lake"]))
        stage = stack.enter_context(
            open_project(work / "stage", seed=options.seed, tables=options.tables, server=server)
        )
        run = HostileRun(
            stage,
            stack.enter_context(landing_side(stage)),
            off=options.off,
            hostile_every_seconds=options.hostile_every_seconds,
            deadly_every_seconds=options.deadly_every_seconds,
            tell=lambda line: print(line, flush=True),
        )
        outcome = run.run(options.minutes)
        passed = report(outcome, seed=stage.seed, ids=stage.ids, off=options.off)
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
