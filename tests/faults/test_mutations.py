"""Mutation batches are killed at every point, concurrently with a stream and OPTIMIZE: the rows must match a replay of
the request log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import present, write_files
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.mutable_rows import FIELD, TABLES, UNSET, Damage, MutableRows, events_of, find_damage, time_of
from tests.faults.harness.mutation_entry import IN_MERGE
from tests.faults.harness.process_group import ProcessGroup
from tests.spark.mutations.mutation_harness import PIPELINE as CRM
from tests.spark.mutations.mutation_harness import MutationHarness, declared

MakeStage = Callable[..., FaultProject]
#: tests/spark/mutations/test_apply.py crashes at all steps; these processes are killed with SIGKILL.
POINTS = (IN_MERGE, "merged:activities", "notified:activities", "stored")
LOCAL_POINTS = ("resolved", "merged:activities", "notified:activities", "named", "stored")
#: `small_batch_requests` with which an engine applies each batch.
SMALL_BATCH = {"spark": 0, "process": 20_000}
END_SECONDS = 300.0


class Log:
    """A project whose tables are filled directly, without a stream; only the batch is killed."""

    def __init__(self, stage: FaultProject, *, small_batch_requests: int = 0) -> None:
        self.stage = stage
        self.truth = MutableRows(stage.seed)
        spec = declared(optimize_every=2, small_batch_requests=small_batch_requests)
        mapping = spec.model_dump(mode="json", exclude_unset=True)
        write_files(stage.root, {f"include/pipelines/{CRM}/pipeline.yaml": mapping})
        self.tables = MutationHarness(stage.root / "lake", spec)

    def land(self, **counts: int) -> None:
        """Lands one batch, as a stream does."""
        rows, requests = self.truth.add(**counts)
        self.tables.land(
            rows=[
                {"event_id": event, "org_id": org, "time": time_of(at), "id": each_id, FIELD: UNSET}
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
        """Runs a mutation batch that is killed at a point or succeeds; returns its seconds."""
        with Mutation(self.stage, CRM, point, off) as run:
            assert run.wait() == (0 if point == "-" else -signal.SIGKILL), run.tail()
            return time.monotonic() - run.began

    def harm(self) -> Damage:
        return find_damage(self.stage.lake, CRM, self.truth)


class Stream:
    """A project with a stream that lands rows and requests from objects."""

    def __init__(self, stage: FaultProject) -> None:
        self.stage = stage
        self.truth = MutableRows(stage.seed)
        mutations = {"requests": "requests", "notifications": "notifications", "optimize_every": 2}
        # Spark's merge takes seconds, in which a stream commits; delta-rs would finish before.
        mutations["small_merge_bytes"] = 0
        stage.declare(
            tables=TABLES,
            source={"max_files_per_batch": 4},
            mutations=mutations,
            maintenance={"closed_after_hours": 0},
        )

    def land(self, **counts: int) -> None:
        """Lands one object."""
        self.stage.announce(events_of(self.stage, self.truth, **counts))

    def harm(self) -> Damage:
        return find_damage(self.stage.lake, PIPELINE, self.truth)


class Mutation(ProcessGroup):
    """One run of mutation batches."""

    def __init__(self, stage: FaultProject, pipeline: str, point: str = "-", off: str = "") -> None:
        self.began = time.monotonic()
        super().__init__(
            [sys.executable, "-m", "tests.faults.harness.mutation_entry", pipeline, point, off],
            log=stage.root / f"mutation-{len(list(stage.root.glob('mutation-*.log')))}.log",
            environment=stage.environment(),
        )

    def wait(self) -> int:
        return self.process.wait(END_SECONDS)


@pytest.mark.parametrize(("engine", "points"), [("spark", POINTS), ("process", LOCAL_POINTS)])
def test_a_batch_killed_at_its_steps_is_completed_within_its_bounds(
    make_stage: MakeStage, print_result: Callable[..., None], engine: str, points: Sequence[str]
) -> None:
    log = Log(make_stage(tables=1), small_batch_requests=SMALL_BATCH[engine])
    log.land()
    for point in points:
        log.mutate(point)
        # Requests after a crash belong to the next batch; the interrupted one is continued.
        log.land(rows=20, requests=6)
    took = log.mutate()

    found = log.harm()
    _tell(
        print_result,
        f"mutation batch by {engine} killed at {', '.join(points)}",
        "",
        log.truth,
        found,
        f"recovery {took:.1f} s",
    )
    assert not found
    assert log.tables.batches.numbers() == (2, 2)
    assert {present(log.tables.batches.completion(number)).engine for number in (1, 2)} == {engine}


@pytest.mark.parametrize("engine", SMALL_BATCH)
@pytest.mark.parametrize(("off", "point"), [("transactions", "notified:activities"), ("bounds", "merged:activities")])
def test_without_a_protection_a_repeated_batch_corrupts_data(
    make_stage: MakeStage, print_result: Callable[..., None], off: str, point: str, engine: str
) -> None:
    log = Log(make_stage(tables=1), small_batch_requests=SMALL_BATCH[engine])
    log.land(requests=40)
    log.mutate(point, off)
    log.land(requests=40)
    log.mutate(off=off)

    found = log.harm()
    _tell(print_result, f"mutation batch killed at {point}", off, log.truth, found)
    assert found.announced_twice if off == "transactions" else found.rows


@pytest.mark.parametrize("off", ["", "turn"])
def test_a_batch_during_a_stream_and_optimize(
    make_stage: MakeStage, print_result: Callable[..., None], off: str
) -> None:
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
        stop = StopFlag(stream.stage.objects, paths.pipeline_control(PIPELINE, "stop.json"))
        stop.set(by="test", reason="done")
        assert driver.wait() == 0, driver.tail()
        # Rows landed since the last batch are read by the next driver.
        stop.clear()
    told = run.log.read_text()
    conflicts = told.count("met another writer")
    if off:
        print_result(
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
        print_result,
        "mutation batch killed and repeated beside a stream and OPTIMIZE",
        "",
        stream.truth,
        found,
        *counts,
    )
    assert not found
    assert conflicts == 0


def _tell(
    print_result: Callable[..., None], fault: str, off: str, truth: MutableRows, found: Damage, *notes: str
) -> None:
    protected = f"WITHOUT {off}" if off else "protected"
    print_result(fault, protected, f"rows {len(truth.rows)}", f"requests {len(truth.requests)}", str(found), *notes)


def optimize(stage: FaultProject) -> subprocess.Popen[bytes]:
    """Runs OPTIMIZE of the pipeline's tables as a separate job."""
    job = PROJECT_ROOT / "spark_jobs" / "optimize_tables.py"
    return subprocess.Popen(
        [sys.executable, str(job), "--pipeline", PIPELINE, '--options={"dry_run":false}'],
        stdout=(stage.root / "optimize.log").open("w"),
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **stage.environment(), "PYTHONPATH": str(PROJECT_ROOT / "include")},
    )
