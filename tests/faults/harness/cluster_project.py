"""Three pipelines of one landing bucket on a standalone cluster: one with mutations, one with gold, one clustered by
OPTIMIZE.

All three read the same objects, each into its own tables. Every job is a separate process with the cores and memory of
its job class, as an Airflow task starts it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_files
from tests.faults.harness.driver import Driver, python_environment
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.load import Load
from tests.faults.harness.maintenance_load import declare
from tests.faults.harness.mutable_rows import TABLES, MutableRows, events_of
from tests.faults.harness.oracle import Row, Verdict, judge
from tests.faults.harness.process_group import PYTHONPATH, ProcessGroup
from tests.waiting import eventually

MUTABLE, READ, CLUSTERED = PIPELINE, "read", "clustered"
PIPELINES = (MUTABLE, READ, CLUSTERED)
#: Command of each kind of job, and its pipeline.
JOBS: Mapping[str, tuple[str, ...]] = {
    "rebuild_gold": ("--pipeline", READ),
    "optimize_tables": ("--pipeline", CLUSTERED, '--options={"dry_run":false}'),
    "mutate_tables": ("--pipeline", MUTABLE, '--options={"dry_run":false}'),
}
#: Several drivers start concurrently on few cores.
STARTED_WITHIN_SECONDS = 420.0
MOST_RESTARTS = 6
LANDED_WITHIN_SECONDS = 420.0
_EVERY_SECONDS = 6.0
#: Every event is in one of these tables or in quarantine.
_COUNTED = ("events", "quarantine")
_ONE = {"executors": 1, "executor_cores": 1, "executor_memory": "512m", "driver_memory": "600m"}


class Job(ProcessGroup):
    """One run of a job. Leaving the `with` block kills it in any state."""

    def __init__(self, stage: FaultProject, name: str, master: str) -> None:
        number = len(list(stage.root.glob(f"{name}-*.log"))) + 1
        super().__init__(
            [sys.executable, str(PROJECT_ROOT / "spark_jobs" / f"{name}.py"), *JOBS[name]],
            log=stage.root / f"{name}-{number}.log",
            environment={
                **python_environment(),
                **stage.environment(),
                "DELTAWORKS_SPARK_MASTER": master,
                "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
            },
        )

    def run_to_end(self) -> None:
        """Waits until the job ends without an error."""
        eventually(lambda: self.process.poll() is not None, f"{self.log.stem} ends", seconds=LANDED_WITHIN_SECONDS)
        assert self.process.returncode == 0, self.tail()


class Streams:
    """Runs one driver per pipeline and restarts drivers that end, as Airflow does.

    On a busy machine a first start may fail: Spark waits at most ten seconds for its Python process.
    """

    def __init__(self, running: dict[str, Driver], start: Callable[[str], Driver]) -> None:
        self.running = running
        self._start = start
        self.batches = dict.fromkeys(running, 0)
        self.restarts = 0

    def completed(self, pipeline: str) -> int:
        """Returns the batches a stream has completed in all its drivers. Restarts the driver if it has ended."""
        driver = self.running[pipeline]
        here = sum(point == "completed" for _, _, point in driver.points())
        if driver.process.poll() is None:
            return self.batches[pipeline] + here
        driver.kill()
        self.batches[pipeline] += here
        self.restarts += 1
        assert self.restarts <= MOST_RESTARTS, driver.tail()
        self.running[pipeline] = self._start(pipeline)
        return self.batches[pipeline]

    def await_more(self, batches: int) -> None:
        """Waits until every stream has completed this many more batches."""
        due = {name: self.completed(name) + batches for name in self.running}

        def all_have() -> bool:
            time.sleep(0.5)
            return all([self.completed(name) >= number for name, number in due.items()])

        eventually(all_have, f"{batches} more batches of every stream", seconds=STARTED_WITHIN_SECONDS)

    def kill(self) -> None:
        """Sends SIGKILL to the remaining drivers."""
        for driver in self.running.values():
            driver.kill()


class ClusterProject:
    """The project, its landed events and its drivers on a cluster."""

    def __init__(self, stage: FaultProject, master: str) -> None:
        self.stage = stage
        self.master = master
        self.truth = MutableRows(stage.seed)
        #: Events for the MUTABLE pipeline only; the other two do not know them and quarantine them.
        self.foreign: Counter[Row] = Counter()
        #: Once a file with this name exists, the worker that next writes a batch of READ is killed.
        self.armed = stage.root / "worker.armed"
        declare(stage)
        # Twelve processes share the cores, so the jobs use most of the time between two batches.
        stage.declare(stream={"trigger_seconds": 10, "lease_ttl_seconds": 20})
        self._declare_others()
        self._declare_shares()

    def _stream(self, pipeline: str) -> Driver:
        variables = {"DELTAWORKS_TEST_PIPELINE": pipeline}
        if pipeline == READ:
            variables["DELTAWORKS_TEST_LOSE_WORKER"] = str(self.armed)
        return Driver(self.stage, available_now=False, environment=variables, master=self.master)

    @contextmanager
    def streams(self) -> Iterator[Streams]:
        """Runs the streams of all pipelines inside the block."""
        streams = Streams({name: self._stream(name) for name in PIPELINES}, self._stream)
        try:
            yield streams
        finally:
            streams.kill()

    def job(self, name: str) -> Job:
        """Starts a job of JOBS."""
        return Job(self.stage, name, self.master)

    def land(self) -> None:
        """Lands two objects: one with events for the append tables, one with rows and requests for the mutable
        table."""
        stage = self.stage
        stage.land(per_kind=5)
        events = events_of(stage, self.truth, rows=10, requests=2)
        self.foreign.update(("events", each["id"]) for each in events)
        stage.announce(events)

    def load(self) -> Load:
        """Lands objects continuously until it is closed."""
        return Load(self.land, every_seconds=_EVERY_SECONDS)

    def await_landed(self) -> None:
        """Waits until every event has landed in every pipeline."""
        owed = sum(count for (table, _), count in self.owed(MUTABLE).items() if table in _COUNTED)
        for pipeline in PIPELINES:
            what = f"all events of {pipeline} land"
            eventually(lambda name=pipeline: self._landed(name) >= owed, what, seconds=LANDED_WITHIN_SECONDS)  # type: ignore[misc]

    def stop(self, streams: Streams) -> None:
        """Stops all streams through their stop flags."""
        flags = [StopFlag(self.stage.objects, paths.pipeline_control(name, "stop.json")) for name in PIPELINES]
        for flag in flags:
            flag.set(by="tests", reason="the test is over")
        for driver in streams.running.values():
            driver.run_to_end()
        for flag in flags:
            flag.clear()

    def verdicts(self) -> dict[str, Verdict]:
        """Returns each pipeline's result: lost, doubled and unexpected events."""
        names = ["events", *self.stage.kinds]
        return {pipeline: judge(self.stage.lake, pipeline, names, self.owed(pipeline)) for pipeline in PIPELINES}

    def owed(self, pipeline: str) -> Counter[Row]:
        """Returns the `(table, event id)` pairs that were landed for a pipeline."""
        if pipeline == MUTABLE:
            return self.stage.owed + self.foreign
        return self.stage.owed + Counter({("quarantine", event): count for (_, event), count in self.foreign.items()})

    def answers(self) -> int:
        """Returns the events that gold has counted."""
        rows = self.stage.lake.rows(paths.table(READ, "daily"), columns=["events"])
        return 0 if rows is None else sum(rows.column("events").to_pylist())

    def _landed(self, pipeline: str) -> int:
        tables = [self.stage.lake.rows(paths.table(pipeline, name), columns=["_batch_id"]) for name in _COUNTED]
        return sum(table.num_rows for table in tables if table is not None)

    def _declare_others(self) -> None:
        """Declares the two other pipelines: same append tables; events for the mutable table land in their `events`."""
        pipelines = self._include / "pipelines"
        declared = yaml.safe_load((pipelines / MUTABLE / "pipeline.yaml").read_text())
        mutable = {table["name"] for table in TABLES}
        appended = [table for table in declared["tables"] if table["name"] not in mutable]
        del declared["mutations"]
        daily = {"name": "daily", "sql": "daily.sql", "reads": ["events"], "partition_by": "event_date"}
        self._write(READ, {**declared, "pipeline": READ, "tables": appended, "gold": {"tables": [daily]}})
        counted = "SELECT event_date, count(*) AS events FROM events GROUP BY ALL\n"
        (pipelines / READ / "daily.sql").write_text(counted)
        clustered = [_clustered(table) if table["name"] == "k01" else table for table in appended]
        self._write(CLUSTERED, {**declared, "pipeline": CLUSTERED, "tables": clustered})

    def _declare_shares(self) -> None:
        """Declares one core per job class, so that three streams and three jobs fill two workers of three cores."""
        path = self._include / "environments" / "local.yaml"
        environment = yaml.safe_load(path.read_text())
        environment["shares"] = {
            "cluster": {"workers": 2, "worker_cores": 3, "worker_memory": "2g"},
            **dict.fromkeys(("stream", "gold", "maintenance", "mutation"), _ONE),
        }
        environment["spark"] |= {"protected": False, "java_options": "-XX:TieredStopAtLevel=1"}
        environment["spark"]["conf"] |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The library is sent to executors; the test's own task code has to be added.
            "spark.executorEnv.PYTHONPATH": PYTHONPATH,
        }
        path.write_text(yaml.dump(environment, Dumper=_Plain))

    def _write(self, pipeline: str, content: dict[str, Any]) -> None:
        text = yaml.dump(content, Dumper=_Plain, sort_keys=False)
        write_files(self._include, {f"pipelines/{pipeline}/pipeline.yaml": text})

    @property
    def _include(self) -> Path:
        return self.stage.root / "include"


class _Plain(yaml.SafeDumper):
    """YAML dumper that writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _clustered(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the table declared with clustering, so that OPTIMIZE uses Spark for any amount of data."""
    kept = {key: value for key, value in table.items() if key not in ("zorder_by", "partition_by")}
    return {**kept, "cluster_by": ["n"], "writer": "spark"}
