"""Replays and a reprocess are killed or paused while others run: each row lands once or stays open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import pipeline_spec, present
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, RELAY, FaultProject
from tests.faults.harness.process_group import ProcessGroup
from tests.unit.recovery.replay_harness import ReplayHarness, orders

POINTS = ["files_written", "prepared", "committed:events", "committed:orders", "committed:quarantine_replays"]
ROWS = 200
Places = Counter[tuple[int, int]]


def spec(level: str) -> PipelineSpec:
    return pipeline_spec({"name": "events", "catch_all": True}, orders(level))


def replay(stage: ReplayHarness, point: str = "-", off: str = "") -> subprocess.Popen[bytes]:
    root, declared = str(stage.landing.parent), spec("string").model_dump_json()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.harness.replay_entry", root, declared, point, off],
        cwd=PROJECT_ROOT,
        env={"PYTHONPATH": f"{PROJECT_ROOT / 'include'}:{PROJECT_ROOT}", "PATH": ""},
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    """An object of whose rows nine in ten are in quarantine."""
    stage = ReplayHarness(tmp_path)
    lines: list[dict[str, Any]] = [
        {"name": "order", "time": 1_700_000_000, "level": number if number % 10 == 0 else f"level {number}"}
        for number in range(ROWS)
    ]
    stage.ingest(spec("int"), "".join(map(json.dumps, lines)).encode())
    return stage


def judged(stage: ReplayHarness) -> tuple[int, int]:
    """Returns the lost and the surplus rows. Each position must be in both tables once, or hold a number, which no text
    column accepts.
    """
    owed: Places = Counter((1, position) for position in range(ROWS))
    lost = doubled = 0
    for table in ("events", "orders"):
        seen = stage.places(table)
        lost += (owed - seen).total()
        doubled += (seen - owed).total()
    return lost, doubled


@pytest.mark.parametrize(("point", "off"), [*((point, "") for point in POINTS), ("committed:events", "prepared+steps")])
def test_a_replay_killed_anywhere_is_completed_by_the_next(
    stage: ReplayHarness, print_result: Callable[..., None], point: str, off: str
) -> None:
    killed = replay(stage, point, off)
    assert killed.wait(60) == -9, killed.communicate()[1].decode()[-2000:]
    again = replay(stage, off=off)
    assert again.wait(60) == 0, again.communicate()[1].decode()[-2000:]

    lost, doubled = judged(stage)
    without = f"WITHOUT {off}" if off else "protected"
    print_result(f"replay killed at {point}", without, f"rows {ROWS}", f"lost {lost}", f"doubled {doubled}")
    assert (lost, doubled) == (0, 0) if not off else lost + doubled > 0
    assert off or not stage.open_places()


@pytest.mark.parametrize(
    ("point", "off"), [*((point, "") for point in POINTS[:4]), ("files_written", "prepared+steps")]
)
def test_a_replay_that_was_paused_while_another_ran_adds_nothing_when_it_wakes_up(
    stage: ReplayHarness, print_result: Callable[..., None], point: str, off: str
) -> None:
    paused = replay(stage, f"stop:{point}", off)
    assert os.WIFSTOPPED(os.waitpid(paused.pid, os.WUNTRACED)[1])
    other = replay(stage, off=off)
    assert other.wait(60) == 0, other.communicate()[1].decode()[-2000:]
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(60) == 0, paused.communicate()[1].decode()[-2000:]

    lost, doubled = judged(stage)
    without = f"WITHOUT {off}" if off else "protected"
    print_result(f"replay paused at {point}", without, f"rows {ROWS}", f"lost {lost}", f"doubled {doubled}")
    assert (lost, doubled) == (0, 0) if not off else lost + doubled > 0
    assert off or not stage.open_places()


MakeStage = Callable[..., FaultProject]
TABLES = 5
END_SECONDS = 480.0


class Job(ProcessGroup):
    """One run of the reprocess job."""

    def __init__(self, stage: FaultProject, name: str) -> None:
        command = [sys.executable, str(PROJECT_ROOT / "spark_jobs" / "reprocess.py"), "--pipeline", PIPELINE]
        options = json.dumps({"from_start": True, "id": name, "dry_run": False})
        super().__init__(
            [*command, f"--options={options}"],
            log=stage.root / f"reprocess-{len(list(stage.root.glob('reprocess-*.log')))}.log",
            environment=stage.environment(),
        )

    def kill_after(self, tables: int) -> None:
        """Sends SIGKILL to the job and its JVM once this many tables are done."""
        end = time.monotonic() + END_SECONDS
        while self.log.read_text().count("reprocess=") < tables:
            assert time.monotonic() < end, self.tail()
            assert self.process.poll() is None, self.tail()
            time.sleep(0.02)
        self.kill()

    def run_to_end(self) -> list[dict[str, object]]:
        assert self.process.wait(END_SECONDS) == 0, self.tail()
        lines = self.log.read_text().splitlines()
        return json.loads(next(line for line in reversed(lines) if line.startswith("[")))[0]["tables"]  # type: ignore[no-any-return]


def await_all_landed(stage: FaultProject) -> None:
    """Waits until the newest completed batch ends at the end of the file event log."""
    spec = load_catalog("local", root=stage.root).pipeline(PIPELINE)
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        newest = BatchHistory(stage.lake, stage.objects, spec).completed()[-1:]
        last = FileEventLog(stage.lake, RELAY).last_seq()
        if newest and (newest[0].end_offset or {}).get("seq") == last and not newest[0].held:
            return
        time.sleep(0.5)
    raise AssertionError("the stream did not keep up")


def rows_now(stage: FaultProject) -> Counter[tuple[str, str]]:
    """Returns `(table, event id)` of all rows."""
    found: Counter[tuple[str, str]] = Counter()
    for name in ["events", *stage.kinds]:
        rows = present(stage.lake.rows(paths.table(PIPELINE, name), columns=["event_id"]))
        found.update((name, value) for value in rows.column("event_id").to_pylist())
    rows = present(stage.lake.rows(paths.table(PIPELINE, "quarantine"), columns=["raw"]))
    found.update(("quarantine", json.loads(value)["id"]) for value in rows.column("raw").to_pylist())
    return found


def test_a_reprocess_killed_beside_a_running_stream_is_gone_on_with_and_every_event_stays_once(
    make_stage: MakeStage, print_result: Callable[..., None]
) -> None:
    stage = make_stage(tables=TABLES, spark_tables=("k02",))
    stage.land(files=4)
    landing = threading.Event()

    def land() -> None:
        while not landing.wait(1.0):
            stage.land()

    with Driver(stage, available_now=False) as driver:
        driver.await_point("completed")
        await_all_landed(stage)
        thread = threading.Thread(target=land)
        thread.start()
        try:
            killed = Job(stage, "r1")
            killed.kill_after(tables=2)
            began = time.monotonic()
            tables = Job(stage, "r1").run_to_end()
            took = time.monotonic() - began
        finally:
            landing.set()
            thread.join()
        await_all_landed(stage)
        StopFlag(stage.objects, paths.pipeline_control(PIPELINE, "stop.json")).set(by="test", reason="done")
        assert driver.wait() == 0, driver.tail()

    seen = rows_now(stage)
    lost, doubled = (stage.owed - seen).total(), (seen - stage.owed).total()
    print_result(
        "reprocess killed",
        "kill -9 after 2 tables, stream running",
        f"ids sent {stage.ids}",
        f"lost {lost}",
        f"doubled {doubled}",
        f"recovery {took:.1f} s",
    )
    assert (lost, doubled) == (0, 0)
    assert [table["outcome"] for table in tables].count("already_committed") >= 1
    progress = present(stage.lake.rows(paths.pipeline_control(PIPELINE, "progress")))
    batches = [row for row in progress.to_pylist() if row["kind"] == "batch"]
    assert any(row["phases_ms"] and "addBatch" in row["phases_ms"] and row["end_offset"] for row in batches)
    assert all(row["driver_rss_bytes"] and row["jvm_heap_bytes"] for row in batches)
    assert "terminated" in {row["kind"] for row in progress.to_pylist()}
