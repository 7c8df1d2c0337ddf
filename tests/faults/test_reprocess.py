"""Landed objects are reprocessed next to a running stream, by a job that is killed in the middle and run again."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, RELAY, FaultProject
from tests.faults.harness.process_group import ProcessGroup

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
        rows = stage.lake.rows(paths.table(PIPELINE, name), columns=["event_id"])
        assert rows is not None
        found.update((name, value) for value in rows.column("event_id").to_pylist())
    rows = stage.lake.rows(paths.table(PIPELINE, "quarantine"), columns=["raw"])
    assert rows is not None
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
    progress = stage.lake.rows(paths.pipeline_control(PIPELINE, "progress"))
    assert progress is not None
    batches = [row for row in progress.to_pylist() if row["kind"] == "batch"]
    assert any(row["phases_ms"] and "addBatch" in row["phases_ms"] and row["end_offset"] for row in batches)
    assert all(row["driver_rss_bytes"] and row["jvm_heap_bytes"] for row in batches)
    assert "terminated" in {row["kind"] for row in progress.to_pylist()}
