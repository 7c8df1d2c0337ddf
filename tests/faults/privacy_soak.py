"""Soak test of erasures: erases people from a lake of millions of rows during streaming, merges and OPTIMIZE.

`make soak PRIVACY=1 ROWS=10000000 REQUESTS=100`. A reader pins a version meanwhile, which must delay the certificates.
Objects with data of these people land before and after their erasure. The result is checked from files and objects,
without product code: every certificate is correct, no other person's row changed, and no batch was lost or doubled.
Prints the steps with their times, quantities, and `1 passed, 0 failed` or the opposite. Also fails if a required event
never occurred.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.maintenance.vacuum_holds import MINIMUM_RETENTION_HOURS
from deltaworks.privacy.erasure.erasure_run import ErasureResult, ErasureRun
from deltaworks.privacy.erasure.requests import receive_request, token_of
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject, open_project
from tests.faults.harness.load import Load
from tests.faults.harness.maintenance_load import Process, end_stream
from tests.faults.harness.operations import Tally, read_operations, tallies
from tests.faults.harness.oracle import ledger_gaps
from tests.faults.harness.people_lake import BULK, TABLES, People, declare, named_in
from tests.faults.harness.people_verdict import LakeFiles, PeopleVerdict, wrong_with_certificates
from tests.faults.harness.vacuum_clock import advance_vacuum_clock
from tests.waiting import eventually

#: Roles that run concurrently, each in a process with its own JVM.
PROCESSES = (("optimize",), ("mutate",))
#: Events that must have occurred by the end; otherwise the run proves nothing.
SHOWN = (("optimize", "partitions"), ("mutate", "rows"))
READER = "analyst"
_LAND_EVERY = 2.0
_PAUSE_SECONDS = 3.0


class Soak:
    """One run. Build it on a project with TABLES tables in a folder."""

    def __init__(
        self, stage: FaultProject, *, rows: int, requests: int, retention_seconds: float, patience: float
    ) -> None:
        declare(stage)
        self._stage = stage
        self._people = People(stage, rows=rows, requests=requests)
        self._retention_seconds = retention_seconds
        self._patience = patience
        self._stop = stage.root / "stop"
        self._began = time.monotonic()
        self._files = LakeFiles(stage.root / "lake" / paths.table(PIPELINE, ""))
        self._gone: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._held = -1
        self._retried: Counter[str] = Counter()
        self.blocked_by_reader = False
        self.seconds: dict[str, float] = {}

    def run(self) -> bool:
        """Runs everything; returns whether the result is as expected."""
        people, stage = self._people, self._stage
        people.land()
        with Driver(stage) as first:
            first.run_to_end()
        people.write_rows(stage.root / "lake")
        tokens = people.tokens()
        self._gone = {tokens[player]: player for player in people.erased}
        self._held = self._files.version(BULK)
        before = self._files.remaining_rows(BULK, self._gone), self._files.rows_of(BULK, self._gone)
        self._tell(f"{people.rows:,} rows of {len(tokens):,} people in {len(self._files.files(BULK))} files")
        home = PipelineHome(stage.objects, PIPELINE)
        home.readers.pin(BULK, reader=READER, version=self._held, hours=24)
        people.land()
        with ExitStack() as running:
            stream = running.enter_context(Driver(stage, available_now=False))
            stream.await_point("completed")
            works = [running.enter_context(Process(stage, roles, stop=self._stop, off=())) for roles in PROCESSES]
            eventually(lambda: all(work.has_begun() for work in works), "everybody is at work", seconds=600)
            load = Load(people.land, every_seconds=_LAND_EVERY)
            running.callback(load.close)
            self._erase(before[1])
            load.close()
            self._stop.touch()
            wrong = [said for work in works if (said := work.wait())]
            wrong += [] if load.failure is None else [f"the load ended early: {load.failure}"]
            wrong += end_stream(self._stage, stream)
        with Driver(stage) as last:
            last.run_to_end()
        with Process(stage, ["last_mutate"], stop=self._stop, off=()) as work:
            wrong += [said] if (said := work.wait()) else []
        return self._judge(before, wrong)

    def _erase(self, rows: Counter[str]) -> None:
        """Runs the requests until they are certified, next to the other roles. The reader unpins once it has blocked a
        request.
        """
        people, stage = self._people, self._stage
        received_at, began = datetime.now(UTC), time.monotonic()
        self._landed_before = sorted(stage.landing.rglob("*.json"))
        for token, player in sorted(self._gone.items()):
            space = people.namespace
            request = receive_request(
                space, token_of(space, kind="player", value=player), received_at=received_at, by="the soak"
            )
            self._requests[request.request_id] = token
        assert sum(rows.values()) >= len(rows) == len(self._requests)
        self._advance("shredded", lambda results: _all_at(results, "shredded"), may_purge=False)
        self.seconds["to shredded"] = time.monotonic() - began
        self._advance("purged", lambda results: _all_at(results, "purged"))
        self.seconds["to purged"] = time.monotonic() - began
        ahead = advance_vacuum_clock(kept_hours=MINIMUM_RETENTION_HOURS, retention_seconds=self._retention_seconds)

        def held(results: list[ErasureResult]) -> bool:
            return all(f"the reader {READER}" in result.waiting_for for result in results)

        self._advance("waiting for the reader", held, ahead=ahead)
        content = self._files.remaining_rows(BULK, self._gone, version=self._held)
        self.blocked_by_reader = bool(content.rows) and not self._certificates()
        PipelineHome(stage.objects, PIPELINE).readers.unpin(BULK, reader=READER)
        self._advance("certified", lambda results: _all_at(results, "certified"), ahead=ahead)
        self.seconds["to certified"] = time.monotonic() - began

    def _advance(
        self,
        until: str,
        is_reached: Callable[[list[ErasureResult]], bool],
        *,
        ahead: timedelta = timedelta(),
        may_purge: bool = True,
    ) -> None:
        """Advances the erasures in repeated runs, like the DAG, until all requests have reached a state."""
        end, results = time.monotonic() + self._patience, []
        while True:
            try:
                results = ErasureRun(self._people.namespace, now=datetime.now(UTC) + ahead, may_purge=may_purge).run()
            except Exception as error:
                found = as_deltaworks_error(error)
                # Errors that a launcher retries.
                if not found.retryable or time.monotonic() > end:
                    raise
                self._retried[found.condition] += 1
            else:
                if is_reached(results):
                    self._tell(f"{len(results)} requests are {until}")
                    return
            waits = Counter(f"{result.state}: {result.waiting_for[:150]}" for result in results)
            assert time.monotonic() < end, f"never {until}: {waits.most_common(3)}, tried again {self._retried}"
            self._tell(f"{until}? {waits.most_common(2)}")
            time.sleep(_PAUSE_SECONDS)

    def _certificates(self) -> list[Path]:
        return list((self._stage.root / "lake" / paths.erasure_certificate("players")).glob("*.json"))

    def _judge(self, before: tuple[object, Counter[str]], wrong: list[str]) -> bool:
        stage, people, files = self._stage, self._people, self._files
        verdict = PeopleVerdict(wrong=wrong)
        of_before = before[1]
        at_least = {request: of_before[token] for request, token in self._requests.items()}
        landed = people.sent_to(BULK)
        at_most = {request: count + landed[self._gone[self._requests[request]]] for request, count in at_least.items()}
        folder = stage.root / "lake" / paths.erasure_certificate("players")
        verdict.wrong += wrong_with_certificates(
            folder, list(self._requests), table=BULK, at_least=at_least, at_most=at_most
        )
        verdict.expect(self.blocked_by_reader, "the reader's version was not waited for")
        after = files.remaining_rows(BULK, self._gone)
        verdict.expect(after == before[0], f"rows of others are {after}, and were {before[0]}")
        naming = {name: count for name in files.names() if (count := files.rows_with_tokens(name, self._gone))}
        verdict.expect(not naming, f"rows on the disk that name them: {naming}")
        still = sum(bool(named_in(path) & people.erased) for path in self._landed_before)
        verdict.expect(not still, f"{still} landed objects still name them")
        self._judge_stream(verdict)
        changed = people.expected_mutable(), files.mutable()
        different = ((changed[0] - changed[1]) + (changed[1] - changed[0])).total()
        verdict.expect(not different, f"{different} mutable rows of others are otherwise than a replay has them")
        operations = tallies(read_operations(stage.root.glob("operations-*.jsonl")))
        for role, count in SHOWN:
            verdict.expect(role in operations and bool(operations[role].counts[count]), f"{role} {count} never came up")
        failed = [error for tally in operations.values() for error in tally.errors]
        verdict.expect(not failed, f"operations failed: {failed[:3]}")
        return self._report(verdict, operations, erased=of_before.total())

    def _judge_stream(self, verdict: PeopleVerdict) -> None:
        """Checks that every other landed event is in its tables once, each object in one batch, and nothing else."""
        lost = doubled = strange = 0
        for table in (*(f"k{number:02d}" for number in range(1, TABLES)), "events", "quarantine"):
            there = self._files.landed(table)
            owed = Counter({event: count for (name, event), count in self._people.owed.items() if name == table})
            lost += (owed - there).total()
            strange += sum(event not in owed for event in there)
            doubled += sum(count > owed[event] for event, count in there.items() if event in owed)
        verdict.expect(not lost + doubled + strange, f"events lost {lost}, doubled {doubled}, strange {strange}")
        batches = self._files.batches_of_objects("events")
        verdict.expect(set(batches) == set(range(1, self._stage.files + 1)), "objects were never read")
        verdict.expect(set(batches.values()) == {1}, "objects were read by several batches")
        verdict.expect(not ledger_gaps(self._stage.lake, PIPELINE), "the ledger lacks a batch")
        verdict.counts |= {"objects": len(batches), "events": self._people.owed.total(), "lost": lost, "twice": doubled}

    def _report(self, verdict: PeopleVerdict, operations: dict[str, Tally], *, erased: int) -> bool:
        for role, tally in sorted(operations.items()):
            counts = ", ".join(f"{name} {count:,.0f}" for name, count in tally.counts.items())
            print(f"{role:12} done {tally.done} of {tally.started}, tried again {dict(tally.retried)}: {counts}")
        for said in verdict.wrong:
            print(f"WRONG {said}")
        machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
        seconds = ", ".join(f"{name} {taken:.0f} s" for name, taken in self.seconds.items())
        print(
            f"PRIVACY SOAK | seed {self._stage.seed} | {machine} | rows {self._people.rows:,}, of them erased "
            f"{erased:,} | requests {len(self._requests)}, certificates {len(self._certificates())} | {seconds} | "
            f"tried again {dict(self._retried)} | {verdict.counts} | wrong {len(verdict.wrong)}",
            flush=True,
        )
        return not verdict.wrong

    def _tell(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {line}", flush=True)


def _all_at(results: list[ErasureResult], state: str) -> bool:
    return bool(results) and all(result.state == state for result in results)


def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261122")))
    parser.add_argument("--retention-seconds", type=float, default=120.0, help="what counts as a week for VACUUM")
    parser.add_argument("--patience", type=float, default=1_200.0, help="seconds within which each state is reached")
    options = parser.parse_args()
    logging.getLogger("deltaworks").setLevel(logging.ERROR)
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="deltaworks-soak-", ignore_cleanup_errors=True)
        root = Path(stack.enter_context(folder)) / "stage"
        stage = stack.enter_context(open_project(root, seed=options.seed, tables=TABLES))
        passed = Soak(
            stage,
            rows=options.rows,
            requests=options.requests,
            retention_seconds=options.retention_seconds,
            patience=options.patience,
        ).run()
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
