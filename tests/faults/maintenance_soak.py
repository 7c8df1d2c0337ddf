"""Maintenance soak test on S3: a stream with concurrent OPTIMIZE, VACUUM, bad writes, RESTORE and merges.

`make soak MAINTENANCE=1 MINUTES=10`. Prints progress every half minute, and a final table of operations: started,
succeeded, succeeded after retries with their conditions, failed. Then lists lost, duplicated and wrong rows, compared
with a replay of all requests. Ends with `1 passed, 0 failed` or the opposite; it also fails if a scenario never
occurred.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
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
from tests.faults.harness.maintenance_load import APPEND_TABLES, MaintenanceLoad, Outcome
from tests.faults.harness.operations import Tally

console = Console(width=150, highlight=False)


def listing(operations: dict[str, Tally]) -> Table:
    """All roles, a line each."""
    table = Table("operation", "begun", "done", "of them retried", "attempts ended by", "failed", "longest", "what")
    for role, tally in sorted(operations.items()):
        conditions = ", ".join(f"{condition} {count}" for condition, count in tally.retried.most_common())
        counts = ", ".join(f"{name} {count:,.0f}" for name, count in tally.counts.items())
        table.add_row(
            role,
            str(tally.started),
            str(tally.done),
            str(tally.done_after_retries),
            conditions or "-",
            str(tally.failed),
            f"{tally.longest:.1f} s",
            counts,
        )
    return table


def report(outcome: Outcome, *, seed: int, ids: int, off: Sequence[str]) -> bool:
    """Prints the result; returns whether it is as expected: exact, or damaged without a protection."""
    console.print(listing(outcome.operations))
    for tally in outcome.operations.values():
        for error in tally.errors:
            console.print(f"FAILED {tally.role}: {error}", markup=False)
    for said in outcome.wrong:
        console.print(said, markup=False)
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
    console.print(
        f"MAINTENANCE {'WITHOUT ' + ', '.join(off) if off else 'protected'} | seed {seed} | "
        f"{outcome.loaded_seconds / 60:.1f} min | {machine} | s3proxy | ids {ids} | "
        f"{ids / outcome.loaded_seconds:.0f} events/s | {outcome} | late commits {outcome.late_commits}",
        soft_wrap=True,
        markup=False,
    )
    if outcome.missing:
        console.print(f"never came up: {', '.join(outcome.missing)}")
    return not outcome.is_exact if off else outcome.is_exact and not outcome.missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261121")))
    parser.add_argument("--events-per-object", type=int, default=40, help="for the append tables, an object a second")
    parser.add_argument("--off", nargs="*", default=[], help="protections taken away: harm is then what must be seen")
    parser.add_argument("--records", type=Path, help="a folder for the records of all operations and the logs")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="deltaworks-soak-", ignore_cleanup_errors=True)
        work = Path(stack.enter_context(folder))
        server = stack.enter_context(running_object_store(work / "s3", buckets=["deltaworks-lake"]))
        stage = stack.enter_context(
            open_project(work / "stage", seed=options.seed, tables=APPEND_TABLES, server=server)
        )
        upkeep = MaintenanceLoad(stage, off=options.off, events_per_object=options.events_per_object)
        try:
            outcome = upkeep.run(options.minutes, tell=lambda line: print(line, flush=True))
        finally:
            if options.records is not None:
                options.records.mkdir(parents=True, exist_ok=True)
                for path in [*stage.root.glob("operations-*.jsonl"), *stage.root.glob("*.log")]:
                    shutil.copy(path, options.records)
        passed = report(outcome, seed=stage.seed, ids=stage.ids, off=options.off)
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
