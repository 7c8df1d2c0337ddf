"""`cluster`: the delay from new data to its gold rows while OPTIMIZE runs on the same cluster.

The cluster has a standalone master and two workers with one core each, as processes. `gold_wait`: rows are appended to
a bronze table, then `spark_jobs/rebuild_gold.py` is started with the cluster share of gold jobs, as its Airflow task
starts it. The time ends when the gold table contains the rows. The benchmark compares this time on a cluster where a
maintenance job Z-orders without a pause, with the share and niceness of its task, with an idle cluster.

Jobs are submitted directly, without Airflow and its pools; only the case that pools allow, gold with OPTIMIZE, is
measured. All processes share the machine's cores, so the ratio includes the cost of a second busy process.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_WORKERS = 2
_START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
_ONE_CORE = "{executors: 1, executor_cores: 1, executor_memory: 768m, driver_memory: 768m}"
_FILES = {
    "environments/local.yaml": f"""\
environment: local
lake: {{root: "file://%(root)s/lake"}}
landing: {{root: "file://%(root)s/landing"}}
messaging: {{}}
spark:
  protected: false
  shuffle_partitions: 2
  conf: {{spark.driver.host: 127.0.0.1, spark.driver.bindAddress: 127.0.0.1}}
shares:
  cluster: {{workers: {_WORKERS}, worker_cores: 1, worker_memory: 1g}}
  gold: {_ONE_CORE}
  maintenance: {_ONE_CORE}
""",
    "relays/landing.yaml": """\
relay: landing
owner: benchmarks
queue_url: http://localhost/queue
buckets: [landing]
""",
    "pipelines/shop/pipeline.yaml": """\
pipeline: shop
description: events whose gold is built
owner: benchmarks
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}, id: id}
tables:
  - name: events
    catch_all: true
    columns: [{name: player, path: player, type: long}]
gold:
  tables:
    - {name: daily, sql: daily.sql, reads: [events], partition_by: event_date}
""",
    "pipelines/shop/daily.sql": "SELECT event_date, player, count(*) AS events FROM events GROUP BY ALL\n",
}


def run(options: Options) -> list[Result]:
    """Measures gold builds with and without concurrent OPTIMIZE on one cluster."""
    from benchmarks.standalone import standalone_cluster

    rows = max(options.events // 5, 1)
    with _project() as root, standalone_cluster(root, workers=_WORKERS, memory="1g") as master:
        gold = _GoldProject(root, master, rows)
        beside, idle = (
            Side(name, _GoldBuild(gold, concurrent_optimize=beside))
            for name, beside in (("beside_optimize", True), ("idle", False))
        )
        sizes = {"rows": rows, "workers": _WORKERS, "worker_cores": 1}
        comparison = Comparison(metric="gold_wait", ours=beside, other=idle, sizes=sizes)
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@contextmanager
def _project() -> Iterator[Path]:
    """Creates a temporary project with one pipeline."""
    from benchmarks.games_files import bench_folder
    from deltaworks.specs.catalog import PROJECT_ROOT

    root = bench_folder() / f"cluster-{uuid.uuid4().hex[:8]}"
    for name, text in _FILES.items():
        path = root / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("%(root)s", str(root)), encoding="utf-8")
    for name in ("jars", "spark"):
        (root / "include" / name).symlink_to(PROJECT_ROOT / "include" / name)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _GoldProject:
    """The project's events table, and the job that builds gold from it."""

    root: Path
    master: str
    rows: int
    _days: Iterator[int] = field(default_factory=itertools.count)

    def process(self, *command: str, niceness: int = 0) -> subprocess.Popen[str]:
        """Starts a job as an Airflow task does: as a child process that ends with this one."""
        from deltaworks.airflow.child_process import child_options
        from deltaworks.specs.catalog import PROJECT_ROOT

        path = os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)])
        settings = {"DELTAWORKS_PROJECT": str(self.root), "DELTAWORKS_ENVIRONMENT": "local", "DELTAWORKS_PIPELINES": ""}
        return subprocess.Popen(
            [sys.executable, *command],
            env=os.environ
            | settings
            | {"DELTAWORKS_SPARK_MASTER": self.master, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            **child_options(niceness=niceness) | {"stdin": subprocess.PIPE},
        )

    def append(self) -> int:
        """Lands events of the next day and returns the day's number."""
        from deltaworks.control import paths
        from deltaworks.control.provenance import user_metadata
        from deltaworks.tables.arrow_types import arrow_schema
        from deltaworks.tables.commit import Step
        from deltaworks.tables.lake import Lake

        day, catalog = next(self._days), self._catalog()
        schema = arrow_schema(catalog.pipeline("shop").table("events").column_types())
        key, lake = paths.table("shop", "events"), Lake(catalog.environment.lake)
        made = user_metadata(pipeline="shop", batch=day, operation="ingest")
        partition_by = catalog.pipeline("shop").table("events").partition_by
        opened = lake.ensure(key, schema, user_metadata=made, partition_by=partition_by)
        step = Step("shop/1/events", day)
        lake.append(opened, key, self._events(day, schema), step=step, user_metadata=made)
        return day

    def build(self, day: int) -> None:
        """Runs a gold build to its end. Raises if gold lacks events of the day."""
        from deltaworks.control import paths
        from deltaworks.specs.catalog import PROJECT_ROOT
        from deltaworks.tables.lake import Lake

        process = self.process(str(PROJECT_ROOT / "spark_jobs" / "rebuild_gold.py"), "--pipeline", "shop")
        said, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"gold ended with {process.returncode}: {said[-2000:]}")
        built = Lake(self._catalog().environment.lake).rows(
            paths.table("shop", "daily"), columns=["event_date", "events"]
        )
        date = (_START + dt.timedelta(days=day)).date()
        counted = sum(row["events"] for row in (built.to_pylist() if built else []) if row["event_date"] == date)
        if counted != self.rows:
            raise RuntimeError(f"gold counts {counted} events of {date}, not {self.rows}")

    def _catalog(self) -> Catalog:
        from deltaworks.specs.project import load_catalog

        return load_catalog("local", root=self.root)

    def _events(self, day: int, schema: object) -> object:
        import numpy as np
        import pyarrow as pa

        assert isinstance(schema, pa.Schema)
        time = _START + dt.timedelta(days=day)
        number = np.arange(self.rows)
        constant = {"event_name": "event", "event_time": time, "event_date": time.date(), "_ingested_at": time}
        constant |= {"_batch_id": day, "_seq": day + 1}
        columns = {"player": number % 10_007, "_position": number, "event_id": (number + day * self.rows).astype(str)}
        return pa.table(
            [
                pa.array(columns[name], type=kind)
                if name in columns
                else pa.repeat(pa.scalar(constant.get(name), type=kind), self.rows)
                for name, kind in zip(schema.names, schema.types, strict=True)
            ],
            schema=schema,
        )


@dataclass(frozen=True, slots=True)
class _GoldBuild:
    """One repetition: lands data and builds gold, with or without concurrent OPTIMIZE."""

    gold: _GoldProject
    concurrent_optimize: bool

    def __call__(self, clock: Clock) -> None:
        with self._optimize() as optimize:
            with clock:
                day = self.gold.append()
                self.gold.build(day)
            if optimize is not None:
                said, _ = optimize.communicate()
                if optimize.returncode != 0:
                    raise RuntimeError(f"OPTIMIZE ended with {optimize.returncode}")
                clock.record(optimize_commands=int(said.split()[-1]))

    @contextmanager
    def _optimize(self) -> Iterator[subprocess.Popen[str] | None]:
        """Runs a maintenance job, from its first command until the block ends."""
        if not self.concurrent_optimize:
            yield None
            return
        from deltaworks.specs.shares import MAINTENANCE_NICENESS

        uri, rows = f"file://{self.gold.root}/closed", str(5 * self.gold.rows)
        process = self.gold.process(
            "-m", "benchmarks.cluster_background_rewrite", uri, rows, niceness=MAINTENANCE_NICENESS
        )
        try:
            assert process.stdout is not None
            if not any(line.strip() == "began" for line in process.stdout):
                raise RuntimeError(f"OPTIMIZE ended with {process.wait()}")
            yield process
        finally:
            process.kill()
            process.wait()


BENCHMARK = Benchmark(
    name="cluster",
    summary="the delay from new data to gold while OPTIMIZE runs on the cluster, against an idle cluster",
    run=run,
    tiny=TinySize(),
)
