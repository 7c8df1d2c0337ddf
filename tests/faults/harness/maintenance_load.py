"""Runs a stream and all maintenance of its tables at the same time: OPTIMIZE, VACUUM, bad deletes with RESTORE, merges.

One pipeline has append tables, and a mutable table with its requests and notifications. The stream, maintenance,
mutations and the other roles are separate processes (`maintenance_entry`). The product alone decides which of them may
run at the same time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from tests.faults.harness import mutable_rows
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.load import Load
from tests.faults.harness.mutable_rows import Damage, MutableRows, events_of, find_damage
from tests.faults.harness.operations import BOUND_SECONDS, Tally, read_operations, tallies
from tests.faults.harness.oracle import Verdict, commits_after_takeover, judge
from tests.faults.harness.process_group import ProcessGroup
from tests.waiting import eventually

#: Besides the mutable tables: `events` and k01 to k04.
APPEND_TABLES = 5
#: Roles that share a process: maintenance, mutations, and roles without a JVM.
PROCESSES = (("optimize", "vacuum"), ("mutate", "second_mutate"), ("restore", "read"))
#: Counts by role that must be positive at the end; otherwise the run proves nothing.
REQUIRED_COUNTS = (
    ("optimize", "partitions"),
    ("vacuum", "files"),
    ("vacuum", "held_back"),
    ("mutate", "rows"),
    ("delete", "rows"),
    ("restore", "rows_in"),
    ("read", "reads"),
)
_LAND_EVERY = 2.0
_TELL_SECONDS = 30.0
_END_SECONDS = BOUND_SECONDS + 120.0


class Process(ProcessGroup):
    """The process of some roles. Leaving the `with` block kills it in any state."""

    def __init__(self, stage: FaultProject, roles: Sequence[str], *, stop: Path, off: Sequence[str]) -> None:
        self._name = "+".join(roles)
        self.records = [stage.root / f"operations-{role}.jsonl" for role in roles]
        for path in self.records:
            path.touch()
        arguments = [self._name, str(stage.root), str(stop), str(stage.seed), "+".join(off)]
        super().__init__(
            [sys.executable, "-m", "tests.faults.harness.maintenance_entry", *arguments],
            log=stage.root / f"{self._name}.log",
            # As for the drivers: full JIT compilation would cost more than it saves.
            environment={**stage.environment(), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
        )

    def has_begun(self) -> bool:
        """Returns whether each of its roles has ended an operation, or is reading."""
        assert self.process.poll() is None, self.tail()
        return all(
            any(each.outcome != "begun" or each.role == "read" for each in read_operations([path]))
            for path in self.records
        )

    def wait(self) -> str:
        """Waits for the end; returns the error, empty if there was none."""
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self._name} did not end\n{self.tail()}"
        return "" if code == 0 else f"{self._name} ended with {code}\n{self.tail()}"


@dataclass(slots=True)
class Outcome:
    """Result of a run."""

    verdict: Verdict
    harm: Damage
    late_commits: int
    operations: dict[str, Tally]
    stream_batches: int
    longest_pause: float
    rows: int
    requests: int
    loaded_seconds: float
    wrong: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Returns operations that neither succeeded nor ended with a retryable condition."""
        return sum(tally.failed for tally in self.operations.values())

    @property
    def missing(self) -> list[str]:
        """Returns the required events that never occurred."""
        return [
            f"{role} {count}"
            for role, count in REQUIRED_COUNTS
            if role not in self.operations or not self.operations[role].counts[count]
        ]

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, doubled or different from the replay, and every operation succeeded."""
        return self.verdict.is_exact and not (self.harm or self.failed or self.wrong or self.late_commits)

    def __str__(self) -> str:
        return (
            f"{self.verdict} | rows {self.rows}, requests {self.requests}: {self.harm} | operations failed "
            f"{self.failed} | stream batches {self.stream_batches}, longest pause {self.longest_pause:.1f} s"
        )


class MaintenanceLoad:
    """One run. Build it on a project made with APPEND_TABLES tables."""

    def __init__(self, stage: FaultProject, *, off: Sequence[str] = (), events_per_object: int = 40) -> None:
        self._stage = stage
        self._off = off
        self._per_kind = max(1, events_per_object // len(stage.kinds))
        self._truth = MutableRows(stage.seed)
        self._stop = stage.root / "stop"
        declare(stage)

    def run(self, minutes: float, *, tell: Callable[[str], None] = lambda line: None) -> Outcome:
        """Runs all roles for this time; then each completes its current operation, and the remaining events land and
        are merged.
        """
        stage = self._stage
        self._land()
        with ExitStack() as running:
            stream = running.enter_context(Driver(stage, available_now=False))
            stream.await_point("completed")
            works = [
                running.enter_context(Process(stage, roles, stop=self._stop, off=self._off)) for roles in PROCESSES
            ]
            # Starting JVMs are not part of the load, and would use both cores.
            eventually(
                lambda: all(work.has_begun() for work in works), "every role has ended an operation", seconds=300
            )
            load = Load(self._land, every_seconds=_LAND_EVERY)
            running.callback(load.close)
            self._watch(stream, load, works, minutes, tell)
            load.close()
            self._stop.touch()
            wrong = [said for work in works if (said := work.wait())]
            wrong += [] if load.failure is None else [f"the load ended early: {load.failure}"]
            wrong += end_stream(self._stage, stream)
        wrong += self._finish()
        return self._judge(load, stream, wrong)

    def _land(self) -> None:
        """Lands two objects: events for the append tables, and rows and requests for the mutable table."""
        stage = self._stage
        stage.land(per_kind=self._per_kind)
        events = events_of(stage, self._truth, rows=20, requests=2)
        stage.owed.update(("events", each["id"]) for each in events)
        stage.announce(events)

    def _watch(
        self, stream: Driver, load: Load, works: list[Process], minutes: float, tell: Callable[[str], None]
    ) -> None:
        """Prints progress until the time is over or landing has ended."""
        began = told = time.monotonic()
        while (now := time.monotonic()) - began < minutes * 60 and load.failure is None:
            if stream.process.poll() is not None:
                return
            if now - told >= _TELL_SECONDS:
                told = now
                found = tallies(read_operations(path for work in works for path in work.records)).values()
                done = ", ".join(f"{each.role} {each.done}" for each in found)
                tell(f"{now - began:7.1f} s  batches {len(_completed(stream))}, {done}")
            time.sleep(0.5)

    def _finish(self) -> list[str]:
        with Driver(self._stage) as last:
            last.run_to_end()
        with Process(self._stage, ["last_mutate"], stop=self._stop, off=()) as work:
            said = work.wait()
        return [said] if said else []

    def _judge(self, load: Load, stream: Driver, wrong: list[str]) -> Outcome:
        stage = self._stage
        names = ["events", *stage.kinds]
        moments = _completed(stream)
        return Outcome(
            verdict=judge(stage.lake, PIPELINE, names, stage.owed),
            harm=find_damage(stage.lake, PIPELINE, self._truth),
            late_commits=commits_after_takeover(stage.lake, PIPELINE, names),
            operations=tallies(read_operations(stage.root.glob("operations-*.jsonl"))),
            stream_batches=len(moments),
            longest_pause=max((later - earlier for earlier, later in pairwise(moments)), default=float("nan")),
            rows=len(self._truth.rows),
            requests=len(self._truth.requests),
            loaded_seconds=load.seconds,
            wrong=wrong,
        )


def end_stream(stage: FaultProject, stream: Driver) -> list[str]:
    """Asks a stream to stop; returns what went wrong."""
    if stream.process.poll() is not None:
        return [f"the stream ended by itself\n{stream.tail()}"]
    flag = StopFlag(stage.objects, paths.pipeline_control(PIPELINE, "stop.json"))
    flag.set(by="soak", reason="the soak is over")
    code = stream.wait()
    flag.clear()
    return [] if code == 0 else [f"the stream ended with {code}\n{stream.tail()}"]


def _completed(stream: Driver) -> list[float]:
    return [at for at, _, point in stream.points() if point == "completed"]


def declare(stage: FaultProject) -> None:
    """Declares append tables, some with Z-order, and the mutable table. OPTIMIZE may process files of any age."""
    columns = [{"name": "n", "path": "n", "type": "long", "required": True}]
    tables: list[dict[str, Any]] = [
        {"name": "events", "catch_all": True, "columns": columns, "zorder_by": ["event_name"]},
        *({"name": kind, "when": {"name": kind}, "columns": columns, "zorder_by": ["n"]} for kind in stage.kinds[:2]),
        *({"name": kind, "when": {"name": kind}, "columns": columns} for kind in stage.kinds[2:]),
        *mutable_rows.TABLES,
    ]
    stage.declare(
        tables=tables,
        source={"max_files_per_batch": 200},
        stream={"trigger_seconds": 3, "lease_ttl_seconds": 10},
        # Spark does the merges: its commits take long enough to conflict with others.
        mutations={
            "requests": "requests",
            "notifications": "notifications",
            "optimize_every": 3,
            "small_merge_bytes": 0,
        },
        maintenance={"closed_after_hours": 0},
    )
