"""`small_reprocess`: reprocessing a few thousand events in a few hundred objects, without Spark and with it.

Both implementations are processes, measured from start to the end of the reprocess, on a copy of the same lake on local
disk: four tables and quarantine, landed by relay and stream. `cpu_seconds` is the CPU time of the process and its JVM;
compare this value on a busy machine. `sessions` is 1 if Spark was started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.project import declare_project
from benchmarks.scratch_folders import copy_template, scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

_ROOT = Path(__file__).resolve().parents[1]
PIPELINE = "small"
UNDECLARED_KIND = "odd"
_DAILY = "gold/daily.sql"
_KINDS = ("view", "click", "buy")
_OBJECTS, _EVENTS, _UNDECLARED_EVERY = 314, 4_270, 100
_DAY = 86_400


def run(options: Options) -> list[Result]:
    """Lands the objects once and reprocesses them from a copy in each repetition."""
    with land_events(options, events=_EVENTS, undeclared_every=_UNDECLARED_EVERY) as template:
        comparison = Comparison(
            metric="reprocess_without_spark_vs_spark",
            ours=Side("without_spark", _Reprocess(template, "without")),
            other=Side("spark", _Reprocess(template, "spark")),
            sizes={"objects": _OBJECTS, "events": _EVENTS},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@contextmanager
def land_events(options: Options, *, events: int, undeclared_every: int) -> Iterator[Path]:
    """Creates a lake with `events` events. One event in `undeclared_every` has a name without a declared table and is
    quarantined.
    """
    from benchmarks import sides
    from deltaworks.engine.runner import IngestRun
    from deltaworks.operations.stream_parts import STREAM_PARTS
    from deltaworks.sources.objects.relay.relay import Relay

    with scratch_folder("small_reprocess") as root:
        options.progress(f"small_reprocess: {events:,} events in {_OBJECTS} objects")
        catalog, spark = small_project(root), sides.session()
        (root / "landing").mkdir()
        for number in range(_OBJECTS):
            lines = [_event(at, undeclared_every) for at in range(number, events, _OBJECTS)]
            (root / "landing" / f"{number:04}.json").write_text("\n".join(lines))
        try:
            environment = catalog.environment
            relay = catalog.relay("landing")
            Relay(relay, lake=environment.lake, queue=None, landing=environment.landing, until_drained=True).run()
            rows = IngestRun(spark, catalog, PIPELINE, parts=STREAM_PARTS, available_now=True).run().rows
        finally:
            spark.stop()
        if rows < events - events // undeclared_every:
            raise RuntimeError(f"only {rows} rows landed from {events} events")
        yield root


def _event(number: int, undeclared_every: int) -> str:
    name = UNDECLARED_KIND if number % undeclared_every == 0 else _KINDS[number % 3]
    return json.dumps({"name": name, "id": str(number), "at": 1_767_225_600 + number % 3 * _DAY, "price": number / 4})


def small_project(root: Path, *, declare_all: bool = False) -> Catalog:
    """Declares the project of a lake at `root`. With `declare_all` it also has a table for the quarantined events."""
    price: list[dict[str, Any]] = [{"name": "price", "path": "price", "type": "double"}]
    tables = [{"name": kind, "when": {"name": kind}, "columns": price} for kind in _KINDS]
    if declare_all:
        tables.append({"name": UNDECLARED_KIND, "when": {"name": UNDECLARED_KIND}, "columns": price})
    file = root / "include" / "pipelines" / PIPELINE / _DAILY
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("SELECT event_date, event_name, count(*) AS events FROM events GROUP BY ALL")
    gold = {"name": "daily", "sql": _DAILY, "reads": ["events"], "partition_by": "event_date"}
    declared = {
        "pipeline": PIPELINE,
        "description": "A few events.",
        "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": "id"},
        "tables": [{"name": "events", "catch_all": True}, *tables],
        "gold": {"tables": [gold]},
    }
    return declare_project(root, declared, landing=root / "landing")


@dataclass(frozen=True, slots=True)
class _Reprocess:
    """One reprocess of all objects in a separate process."""

    template: Path
    strategy: str

    def __call__(self, clock: Clock) -> None:
        environment = os.environ | {
            "PYTHONPATH": f"{_ROOT / 'include'}{os.pathsep}{_ROOT}",
            "DELTAWORKS_PROJECT": str(_ROOT),
        }
        with copy_template(self.template) as root:
            command = [sys.executable, "-m", "benchmarks.small_reprocess", str(root), self.strategy]
            with clock:
                done = subprocess.run(
                    command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True
                )
        clock.record(**json.loads(done.stdout.splitlines()[-1]))


def main(root: str, strategy: str) -> None:
    """Reprocesses all objects and prints the measurements."""
    import psutil

    from deltaworks.recovery.reprocess.plan import ReprocessRequest
    from deltaworks.recovery.reprocess.replace_rows import MAX_DIRECT_BYTES
    from deltaworks.recovery.reprocess.run import Reprocess
    from deltaworks.recovery.reprocess.selection import Selection

    sessions: list[SparkSession] = []
    catalog = small_project(Path(root))

    def spark() -> SparkSession:
        from deltaworks.tables.spark_session import build_session

        if not sessions:
            sessions.append(build_session(catalog.environment, app_name="small_reprocess"))
        return sessions[0]

    job = Reprocess(spark, catalog, PIPELINE, direct_bytes=0 if strategy == "spark" else MAX_DIRECT_BYTES)
    result = job.run("again", ReprocessRequest(selection=Selection(from_start=True)))
    if any(table.rows_out != table.rows_in for table in result.tables):
        raise RuntimeError(f"rows were lost or doubled: {result.tables}")
    process = psutil.Process()
    everything = [process, *process.children(recursive=True)]
    results = {
        "cpu_seconds": round(sum(sum(one.cpu_times()[:2]) for one in everything), 2),
        "reprocess_seconds": round(result.seconds, 2),
        "sessions": len(sessions),
    }
    sys.stdout.write(json.dumps(results) + "\n")
    for session in sessions:
        session.stop()


BENCHMARK = Benchmark(
    name="small_reprocess",
    summary="reprocessing a few thousand events in a few hundred objects, without Spark against with Spark",
    run=run,
    tiny=TinySize(constants={"_OBJECTS": 20, "_EVENTS": 300}),
)

if __name__ == "__main__":
    main(*sys.argv[1:])
