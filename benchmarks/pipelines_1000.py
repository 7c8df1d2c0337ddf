"""`pipelines_1000`: 1,000 declared pipelines, one per tenant, with one bucket that receives 100,000 objects a minute.

- `dag_files_vs_bare_dags`: all DAG files parsed and serialized as by Airflow's DAG processor, in sequence, each in its
  own process, against the same number of plain Airflow DAGs with one task. `slowest_seconds` is the time of the slowest
  file, which is the time a processor with several processes takes. The environment names one pipeline in
  `operation_dags`.
- `task_vs_whole_file`: the streams' DAG file parsed for a task of one stream, against parsing all its DAGs.
- `health_vs_one_by_one`: a run of the health check, including alerts on overdue jobs, on a storage whose requests take
  20 ms, against reading one subject after the other (a tenth is read and the time extrapolated).
- `relay_vs_bare_consumer`: a relay with eight receiving threads on a queue whose calls take 20 ms, against a consumer
  with eight threads that stores nothing. `files_per_minute` is the throughput to compare.
- `slice_vs_delta_read`: planning the next slice of one pipeline in a log of 100,000 events of all pipelines, as a
  stream does every minute, against reading its rows by deltalake.

Starting interpreters and importing Airflow is not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.declared_project import write_project
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.simulated_queue import SimulatedQueue, move_by_consumer, move_by_relay
from benchmarks.slow_storage import DelayedObjects

if TYPE_CHECKING:
    from deltaworks.control.objects import ObjectStore
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.storage import StorageSpec

PIPELINES, FILES_PER_MINUTE = 1_000, 100_000
_READ_INDIVIDUALLY = 100
_PREFIX = "tenant_0050/"
_ROOT = Path(__file__).resolve().parents[1]


def run(options: Options) -> list[Result]:
    """Measures all comparisons."""
    files = max(1_000, min(FILES_PER_MINUTE, options.events // 10))
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaworks-pipelines-")))
        write_project(root, pipelines=PIPELINES)
        options.progress(f"{BENCHMARK.name}: declared {PIPELINES:,} pipelines")
        dags, health, log = _DagFiles(root), _HealthCheck(root), _EventLog(root, files)
        comparisons = [
            _comparison("dag_files_vs_bare_dags", dags.parse_all, dags.parse_bare, pipelines=PIPELINES),
            _comparison("task_vs_whole_file", dags.parse_for_a_task, dags.parse_whole_file, pipelines=PIPELINES),
            _comparison("health_vs_one_by_one", health.check, health.check_individually, pipelines=PIPELINES),
            _comparison("relay_vs_bare_consumer", log.relay, log.consume, files=files),
            _comparison("slice_vs_delta_read", log.next_slice, log.delta_read, files=files, pipelines=PIPELINES),
        ]
        return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)


def _comparison(metric: str, ours: Callable[[Clock], None], other: Callable[[Clock], None], **sizes: int) -> Comparison:
    return Comparison(
        metric=metric, ours=Side(f"{metric}:ours", ours), other=Side(f"{metric}:other", other), sizes=sizes
    )


@dataclass
class _DagFiles:
    root: Path
    dags: int = 0
    durations: dict[str, dict[str, float]] = field(default_factory=dict)

    def parse_all(self, clock: Clock) -> None:
        self.durations = {file.stem: self._parsed(str(file)) for file in sorted((_ROOT / "dags").glob("*.py"))}
        self.dags = int(sum(record["dags"] for record in self.durations.values()))
        clock.seconds = sum(record["seconds"] for record in self.durations.values())
        slowest = max(self.durations.values(), key=lambda record: record["seconds"])
        clock.record(dags=self.dags, slowest_seconds=slowest["seconds"], slowest_cpu_seconds=slowest["cpu_seconds"])
        clock.record(**{f"{name}_seconds": record["seconds"] for name, record in self.durations.items()})

    def parse_bare(self, clock: Clock) -> None:
        record = self._parsed("--bare", str(self.dags))
        clock.seconds = record["seconds"]
        clock.record(dags=record["dags"], cpu_seconds=record["cpu_seconds"])

    def parse_for_a_task(self, clock: Clock) -> None:
        record = self._parsed(str(_ROOT / "dags" / "streams.py"), "--task", "tenant_0050__stream")
        if record["dags"] != 1:
            raise RuntimeError(f"parsing for one task created {record['dags']} DAGs")
        clock.seconds = record["parse_seconds"]

    def parse_whole_file(self, clock: Clock) -> None:
        clock.seconds = self._parsed(str(_ROOT / "dags" / "streams.py"))["parse_seconds"]

    def _parsed(self, *arguments: str) -> dict[str, float]:
        environment = os.environ | {
            "PYTHONPATH": f"{_ROOT / 'include'}:{_ROOT}",
            "DELTAWORKS_PROJECT": str(self.root),
            "DELTAWORKS_ENVIRONMENT": "local",
            "AIRFLOW_HOME": str(self.root / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(_ROOT / "plugins"),
        }
        words = [sys.executable, "-m", "benchmarks.dag_parsing", *arguments]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments}: {done.stderr}")
        record: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return record


@dataclass
class _HealthCheck:
    root: Path

    def check(self, clock: Clock) -> None:
        from deltaworks.airflow.health_alerts import alert_on_overdue_jobs, alert_on_stale_gold, alert_on_verdicts
        from deltaworks.airflow.restarts import resolve_restart_alerts
        from deltaworks.control.clock import utc_now
        from deltaworks.control.health import report

        objects, now = DelayedObjects(self._objects(self._catalog())), utc_now()
        with clock:
            catalog = self._catalog()
            judged = report.check_subjects(report.subjects(catalog), objects, now=now)
            verdicts = [item.verdict for item in judged]
            alert_on_verdicts(objects, verdicts, now=now)
            alert_on_overdue_jobs(objects, catalog, now=now)
            alert_on_stale_gold(objects, catalog, now=now)
            resolve_restart_alerts(objects, [verdict.name for verdict in verdicts if not verdict.is_unhealthy], now=now)
        if len(verdicts) != PIPELINES + 1:
            raise RuntimeError(f"the health check returned {len(verdicts)} verdicts")
        clock.record(requests=objects.requests)

    def check_individually(self, clock: Clock) -> None:
        from deltaworks.control.health import report

        catalog = self._catalog()
        objects = DelayedObjects(self._objects(catalog))
        with clock:
            for subject in report.subjects(catalog)[:_READ_INDIVIDUALLY]:
                report.check_subject(subject, objects)
        clock.seconds *= PIPELINES / _READ_INDIVIDUALLY

    def _catalog(self) -> Catalog:
        from deltaworks.specs.project import load_catalog

        return load_catalog("local", root=self.root, skip_invalid=True)

    def _objects(self, catalog: Catalog) -> ObjectStore:
        """Returns a control area with a current heartbeat of every stream."""
        from deltaworks.control import paths
        from deltaworks.control.health.heartbeat import HeartbeatWriter
        from deltaworks.control.objects import open_objects

        objects = open_objects(catalog.environment.lake)
        for name in catalog.pipelines:
            key = paths.heartbeat(paths.pipeline_control(name))
            writer = HeartbeatWriter(objects, key, pipeline=name, trigger_seconds=60)
            writer.update(state="running")
            objects.put(key, writer.current.encode())
        return objects


@dataclass
class _EventLog:
    root: Path
    files: int

    def relay(self, clock: Clock) -> None:
        clock.seconds = move_by_relay(SimulatedQueue(self.files, prefixes=PIPELINES), self._storage())
        clock.record(files_per_minute=60 * self.files / clock.seconds)

    def consume(self, clock: Clock) -> None:
        clock.seconds = move_by_consumer(SimulatedQueue(self.files, prefixes=PIPELINES))
        clock.record(files_per_minute=60 * self.files / clock.seconds)

    def next_slice(self, clock: Clock) -> None:
        from deltaworks.sources.objects.file_event_log import FileEventLog
        from deltaworks.sources.objects.slices import SliceLimits, SlicePlanner
        from deltaworks.tables.lake import Lake

        with clock:
            planner = SlicePlanner(FileEventLog(Lake(self._storage()), "bench"), bucket=None, prefix=_PREFIX)
            end = planner.next_end_offset(0, SliceLimits(max_files=500, max_bytes=1 << 40))
            rows = planner.rows(0, end).num_rows
        self._check(rows)

    def delta_read(self, clock: Clock) -> None:
        import pyarrow.compute as pc

        from deltaworks.sources.objects.file_event_log import file_events_key
        from deltaworks.tables.lake import Lake

        with clock:
            rows = Lake(self._storage()).rows(
                file_events_key("bench"), filters=pc.starts_with(pc.field("key"), _PREFIX)
            )
        self._check(0 if rows is None else rows.num_rows)

    def _check(self, rows: int) -> None:
        if rows != len(range(50, self.files, PIPELINES)):
            raise RuntimeError(f"the slice has {rows} files")

    def _storage(self) -> StorageSpec:
        from deltaworks.specs.storage import StorageSpec

        return StorageSpec(root=f"file://{self.root}/log")


BENCHMARK = Benchmark(
    name="pipelines_1000",
    summary="1,000 declared pipelines: DAG files, the health check, and a relay of 100,000 objects a minute",
    run=run,
    tiny=TinySize(constants={"PIPELINES": 60, "_READ_INDIVIDUALLY": 5}),
)
