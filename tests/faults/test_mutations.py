"""Mutation batches are killed wherever they can be, beside a stream and OPTIMIZE: rows end where the log leads them."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from deltaworks.control import paths
from deltaworks.control.stop import StopFlag
from deltaworks.mutations.names import NameBook, NameRequest
from deltaworks.mutations.requests import RENAMING
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.tables.lake import Lake
from tests.faults.harness.driver import Driver
from tests.faults.harness.mutation_entry import IN_MERGE
from tests.faults.harness.stage import PIPELINE, Stage
from tests.spark.mutations.mutation_stage import PIPELINE as CRM
from tests.spark.mutations.mutation_stage import START, MutationStage, declared
from tests.unit.mutations.replay_oracle import Request, Row, replay

MakeStage = Callable[..., Stage]
#: All steps are crashed at in tests/spark/mutations/test_apply_crashes.py; these are killed for good.
POINTS = (IN_MERGE, "merged:activities", "notified:activities", "stored")
ORGANISATIONS = ("acme", "bolt", "core")
IDS = "abcdef"
#: The one field that updates set here, and what it is before.
FIELD, UNSET = "f", "f0"
END_SECONDS = 300.0
OPS = ("rename", "rename", "merge", "delete", "undelete", "update", "rename_name")
TABLES: list[dict[str, Any]] = [
    {
        "name": "activities",
        "when": {"name": "activity"},
        "columns": [
            {"name": name, "path": path, "type": "string"}
            for name, path in (
                ("org_id", "org"),
                ("contact_id", "contact"),
                ("origin_contact_id", "contact"),
                (FIELD, "field"),
                (f"origin_{FIELD}", "field"),
            )
        ],
        "partition_by": ["org_id"],
        "zorder_by": ["event_time"],
        "mutable": {"id": "contact_id", "origin": "origin_contact_id", "fields": {FIELD: f"origin_{FIELD}"}},
    },
    {
        "name": "requests",
        "when": {"name": "request"},
        "columns": [
            {"name": name, "path": f"request.{name}", "type": kind}
            for name, kind in (
                *((name, "string") for name in ("org_id", "op", "id", "new_id", "name")),
                ("fields", "map<string,string>"),
                ("seq", "long"),
            )
        ],
    },
    {
        "name": "notifications",
        "announces": {"table": "activities"},
        "columns": [{"name": "org_id", "path": "org", "type": "string"}],
        "partition_by": ["org_id", "ingested_date"],
    },
]


class Truth:
    """Rows and requests by chance, some of them of the past, and what becomes of them by a replay of all."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._time = 0
        self.rows: list[tuple[str, str, int, str]] = []
        self.requests: list[tuple[str, NameRequest]] = []

    def more(self, *, rows: int = 60, requests: int = 12) -> tuple[list[Any], list[Any]]:
        """So many more of both."""
        chance, first = self._chance, (len(self.rows), len(self.requests))
        self._time += 20
        for _ in range(rows):
            event = f"r{len(self.rows)}"
            self.rows.append((event, chance.choice(ORGANISATIONS), self._past(), chance.choice(IDS)))
        for seq in range(first[1], first[1] + requests):
            op = chance.choice(OPS)
            new = chance.choice(IDS) if op in RENAMING else None
            name = f"n{seq}" if op == "rename_name" else None
            at = START + dt.timedelta(seconds=self._past())
            asked = NameRequest(op, chance.choice(IDS), new, name, at, seq)
            self.requests.append((chance.choice(ORGANISATIONS), asked))
        return self.rows[first[0] :], self.requests[first[1] :]

    def _past(self) -> int:
        return max(1, self._time - self._chance.randrange(40))

    def expected_rows(self) -> Counter[tuple[str, str, bool, str]]:
        """Event, id, whether deleted, and the field, of every row."""
        found: Counter[tuple[str, str, bool, str]] = Counter()
        for org in ORGANISATIONS:
            landed = {event: Row(origin=each_id, time=_time(at)) for event, of, at, each_id in self.rows if of == org}
            log = [_as_request(each) for of, each in self.requests if of == org and each.op != "rename_name"]
            replay(landed.values(), log)
            for event, row in landed.items():
                found[event, row.id, row.deleted, row.fields.get(FIELD) or UNSET] += 1
        return found

    def expected_names(self) -> set[tuple[str, str, str]]:
        """Organisation, id and name."""
        return {
            (org, each_id, given.name)
            for org in ORGANISATIONS
            for each_id, given in NameBook("keep_target")
            .replay(each for of, each in self.requests if of == org)
            .items()
        }


@dataclass(frozen=True)
class Harm:
    """What is wrong with the tables of a lake."""

    rows: int
    names: int
    told_twice: int

    def __bool__(self) -> bool:
        return bool(self.rows or self.names or self.told_twice)

    def __str__(self) -> str:
        return f"wrong rows {self.rows}, wrong names {self.names}, told twice {self.told_twice}"


def harm(lake: Lake, pipeline: str, truth: Truth) -> Harm:
    """Rows that are not what a replay makes of them, lost or doubled ones too; names; keys told twice by one batch."""

    def of(table: str) -> list[dict[str, Any]]:
        found = lake.rows(paths.table(pipeline, table))
        assert found is not None
        return found.to_pylist()  # type: ignore[no-any-return]

    seen = Counter((row["event_id"], row["contact_id"], bool(row["_deleted"]), row[FIELD]) for row in of("activities"))
    expected = truth.expected_rows()
    names = {(row["org_id"], row["id"], row["name"]) for row in of("names") if not row["_deleted"]}
    told = Counter(
        (row["batch"], key) for row in of("notifications") if row["batch_kind"] == "mutation" for key in row["keys"]
    )
    return Harm(
        rows=(expected - seen).total() + (seen - expected).total(),
        names=len(names ^ truth.expected_names()),
        told_twice=sum(count - 1 for count in told.values()),
    )


def _time(at: int) -> dt.datetime:
    return START + dt.timedelta(seconds=at)


def _as_request(asked: NameRequest) -> Request:
    fields = {FIELD: f"t{asked.seq}"} if asked.op == "update" else {}
    return Request(time=asked.time, op=asked.op, id=asked.id, new_id=asked.new_id, fields=fields, seq=asked.seq)


class Log:
    """A stage whose tables are filled at once, without a stream: what is killed is the batch."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.truth = Truth(stage.seed)
        spec = declared(optimize_every=2)
        folder = stage.root / "include" / "pipelines" / CRM
        folder.mkdir()
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))
        self.tables = MutationStage(stage.root / "lake", spec)

    def land(self, **counts: int) -> None:
        """One batch of a stream."""
        rows, requests = self.truth.more(**counts)
        self.tables.land(
            rows=[
                {"event_id": event, "org_id": org, "time": _time(at), "id": each_id, FIELD: UNSET}
                for event, org, at, each_id in rows
            ],
            requests=[
                {
                    "org_id": org,
                    **{name: getattr(each, name) for name in ("op", "id", "new_id", "name", "time", "seq")},
                    "fields": [(FIELD, f"t{each.seq}")] if each.op == "update" else None,
                }
                for org, each in requests
            ],
        )

    def mutate(self, point: str = "-", off: str = "") -> float:
        """A run that is killed at a point, or ends well; its seconds."""
        with Mutation(self.stage, CRM, point, off) as run:
            assert run.wait() == (0 if point == "-" else -signal.SIGKILL), run.tail()
            return time.monotonic() - run.began

    def harm(self) -> Harm:
        return harm(self.stage.lake, CRM, self.truth)


class Stream:
    """A stage with a stream that lands rows and requests from objects."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.truth = Truth(stage.seed)
        mutations = {"requests": "requests", "notifications": "notifications", "optimize_every": 2}
        # Spark's merge takes seconds, in which a stream commits; one by delta-rs is over before it could.
        mutations["small_merge_bytes"] = 0
        stage.declare(
            tables=TABLES,
            source={"max_files_per_batch": 4},
            mutations=mutations,
            maintenance={"closed_after_hours": 0},
        )

    def land(self, **counts: int) -> None:
        """One object."""
        rows, requests = self.truth.more(**counts)
        events = []
        for event, org, at, each_id in rows:
            values = {"org": org, "contact": each_id, "field": UNSET}
            events.append({**self.stage.event("activity", at=_epoch(_time(at)), **values), "id": event})
        for org, each in requests:
            asked = {name: getattr(each, name) for name in ("op", "id", "new_id", "name", "seq")}
            asked |= {"org_id": org, "fields": {FIELD: f"t{each.seq}"} if each.op == "update" else None}
            events.append(self.stage.event("request", at=_epoch(each.time), request=asked))
        self.stage.announce(events)

    def harm(self) -> Harm:
        return harm(self.stage.lake, PIPELINE, self.truth)


def _epoch(at: dt.datetime) -> int:
    return int(at.timestamp())


class Mutation:
    """One run of mutation batches."""

    def __init__(self, stage: Stage, pipeline: str, point: str = "-", off: str = "") -> None:
        self.log = stage.root / f"mutation-{len(list(stage.root.glob('mutation-*.log')))}.log"
        self.began = time.monotonic()
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.harness.mutation_entry", pipeline, point, off],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=PROJECT_ROOT,
                start_new_session=True,
                env={
                    **os.environ,
                    **stage.environment(),
                    "PYTHONPATH": f"{PROJECT_ROOT / 'include'}{os.pathsep}{PROJECT_ROOT}",
                },
            )

    def __enter__(self) -> Mutation:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def wait(self) -> int:
        return self.process.wait(END_SECONDS)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def test_a_batch_killed_at_its_steps_is_completed_within_its_bounds(
    make_stage: MakeStage, tell_line: Callable[..., None]
) -> None:
    log = Log(make_stage(tables=1))
    log.land()
    for point in POINTS:
        log.mutate(point)
        # What comes after a death is for the next batch; the one that died is gone on with.
        log.land(rows=20, requests=6)
    took = log.mutate()

    found = log.harm()
    _tell(tell_line, f"mutation batch killed at {', '.join(POINTS)}", "", log.truth, found, f"recovery {took:.1f} s")
    assert not found
    assert log.tables.batches.numbers() == (2, 2)


@pytest.mark.parametrize(("off", "point"), [("transactions", "notified:activities"), ("bounds", "merged:activities")])
def test_without_a_protection_a_batch_that_is_repeated_does_harm(
    make_stage: MakeStage, tell_line: Callable[..., None], off: str, point: str
) -> None:
    log = Log(make_stage(tables=1))
    log.land(requests=40)
    log.mutate(point, off)
    log.land(requests=40)
    log.mutate(off=off)

    found = log.harm()
    _tell(tell_line, f"mutation batch killed at {point}", off, log.truth, found)
    assert found.told_twice if off == "transactions" else found.rows


@pytest.mark.parametrize("off", ["", "turn"])
def test_a_batch_beside_a_stream_and_optimize(make_stage: MakeStage, tell_line: Callable[..., None], off: str) -> None:
    stream = Stream(make_stage(tables=1))
    stream.land(rows=300, requests=60)
    over = threading.Event()

    def land() -> None:
        while not over.wait(0.5):
            stream.land(rows=30, requests=3)

    with Driver(stream.stage, available_now=False) as driver:
        driver.await_point("completed")
        thread = threading.Thread(target=land)
        thread.start()
        try:
            killed = None if off else Mutation(stream.stage, PIPELINE, "merged:activities")
            code = 0 if killed is None else killed.wait()
            with Mutation(stream.stage, PIPELINE, off=off) as run:
                optimizing = None if off else optimize(stream.stage)
                ended = run.wait()
                if optimizing is not None:
                    assert optimizing.wait(END_SECONDS) == 0
                    assert '"partitions": 3' in (stream.stage.root / "optimize.log").read_text()
        finally:
            over.set()
            thread.join()
        batches = sum(point == "completed" for _, _, point in driver.points())
        StopFlag(stream.stage.objects, paths.pipeline_control(PIPELINE, "stop.json")).set(by="test", reason="done")
        assert driver.wait() == 0, driver.tail()
    told = run.log.read_text()
    conflicts = told.count("met another writer")
    if off:
        tell_line(
            "mutation batch beside a stream", f"WITHOUT {off}", f"stream batches {batches}", f"conflicts {conflicts}"
        )
        assert conflicts > 0
        return
    assert (code, ended) == (-signal.SIGKILL, 0), told[-3000:]
    with Driver(stream.stage) as driver:
        driver.run_to_end()
    with Mutation(stream.stage, PIPELINE) as last:
        assert last.wait() == 0, last.tail()
    found = stream.harm()
    pauses = [line for line in told.splitlines() if line.startswith("BATCH ")]
    counts = (f"stream batches {batches}", f"conflicts {conflicts}", *pauses)
    _tell(
        tell_line, "mutation batch killed and repeated beside a stream and OPTIMIZE", "", stream.truth, found, *counts
    )
    assert not found
    assert conflicts == 0


def _tell(tell_line: Callable[..., None], fault: str, off: str, truth: Truth, found: Harm, *notes: str) -> None:
    protected = f"WITHOUT {off}" if off else "protected"
    tell_line(fault, protected, f"rows {len(truth.rows)}", f"requests {len(truth.requests)}", str(found), *notes)


def optimize(stage: Stage) -> subprocess.Popen[bytes]:
    """OPTIMIZE of the pipeline's tables as its own job."""
    return subprocess.Popen(
        [sys.executable, str(PROJECT_ROOT / "spark_jobs" / "optimize_tables.py"), "--pipeline", PIPELINE],
        stdout=(stage.root / "optimize.log").open("w"),
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **stage.environment(), "PYTHONPATH": str(PROJECT_ROOT / "include")},
    )
