"""`peers`: landing the same events in the same tables by the tools a Python user would use instead of Deltaworks.

Events have no faults, so every implementation must land the same rows. After each repetition, the row count and a
checksum of the ids of every table are compared with the generated events. All implementations partition by date and
write new tables on local disk.

Deltaworks lands wrapped, gzipped objects as one batch, as in the benchmark `single_table`, with quarantine, transaction
ids and ledger. The baselines have less work: their events were unwrapped beforehand, one per line.

- `tables_30_vs_spark_loop`: reads once with a schema and caches, then filters and writes each table.
- `tables_30_vs_dlt`: dlt with Delta tables, events as dicts (`benchmarks.peers_dlt`); nested columns stay JSON.

dlt has its own environment, created on first use from PyPI with the pinned versions below. If this fails, the dlt
comparison is skipped and progress shows the reason. Starting processes and importing libraries is not measured.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environments import python_with
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.versions import cores

if TYPE_CHECKING:
    from benchmarks.games_files import GamesFiles
    from benchmarks.landed_content import Content
    from benchmarks.storages import BenchmarkStorage
    from deltaworks.specs.pipeline import PipelineSpec

DLT = "dlt[deltalake]==1.31.0"
_EVENTS = 300_000
_SCRIPT = Path(__file__).with_name("peers_dlt.py")


def run(options: Options) -> list[Result]:
    """Measures the comparisons with at most 300,000 events."""
    from benchmarks import sides, storages
    from benchmarks.games_files import games_files
    from benchmarks.landed_content import with_check
    from generator.settings import FaultRates

    files = games_files(min(options.events, _EVENTS), progress=options.progress, faults=FaultRates.none())
    spec = sides.games_spec()
    expected = expected_content(files, spec)
    place = with_check(storages.local_disk(), expected, column="event_id")
    others: dict[str, Callable[[Clock], None]] = {}
    python = dlt_python(options.progress)
    if python is not None:
        others["dlt"] = DltRun(python, dlt_job(files, spec), place)
    spark = sides.session()
    others["spark_loop"] = sides.write_tables(lambda: sides.read_unwrapped(spark, spec, files), spec.tables, place)
    ours = Side("deltaworks", sides.FanOut(spark, spec, files, place))
    sizes = files.sizes() | {"tables": len(spec.tables), "rows": sum(table.rows for table in expected.values())}
    results = measure(
        BENCHMARK.name,
        [
            Comparison(metric=f"tables_30_vs_{name}", ours=ours, other=Side(name, other), sizes=sizes)
            for name, other in others.items()
        ],
        repeats=options.repeats,
        progress=options.progress,
    )
    spark.stop()
    return results


def expected_content(files: GamesFiles, spec: PipelineSpec) -> dict[str, Content]:
    """Returns the expected content of every table, from the generated events as parsed by Python's JSON module."""
    from benchmarks.landed_content import get_content

    ids: dict[str, list[str | None]] = {table.name: [] for table in spec.tables}
    takers = {table.name: table.when.get("eventName") for table in spec.tables}
    for path in sorted(files.unwrapped.iterdir()):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            event = json.loads(line)
            for name, names in takers.items():
                if names is None or event["eventName"] in names:
                    ids[name].append(event["eventParams"].get("event_id"))
    return {name: get_content(iter(of_table)) for name, of_table in ids.items()}


def dlt_job(files: GamesFiles, spec: PipelineSpec) -> dict[str, Any]:
    """Returns the input of the dlt script: the location of the events, and the declared tables."""
    return {
        "events": str(files.unwrapped),
        "tables": [
            {
                "name": table.name,
                "names": None if (names := table.when.get("eventName")) is None else [str(name) for name in names],
                "partition_by": list(table.partition_by),
                "columns": [
                    {"name": column.name, "parameter": column.path.split(".")[-1], "type": column.type}
                    for column in table.columns
                ],
            }
            for table in spec.tables
        ],
    }


@dataclass(frozen=True, slots=True)
class DltRun:
    """One repetition of dlt, in a separate process that measures its own time."""

    python: Path
    job: dict[str, Any]
    place: BenchmarkStorage

    def __call__(self, clock: Clock) -> None:
        with self.place.new_root() as storage:
            folder = Path(storage.root.removeprefix("file://"))
            job = folder / "job.json"
            job.write_text(json.dumps(self.job | {"root": f"file://{folder}/lake", "state": str(folder / "state")}))
            ran = subprocess.run(
                [str(self.python), "-P", str(_SCRIPT), str(job)],
                env=_environment(),
                cwd=folder,
                check=False,
                capture_output=True,
                text=True,
            )
            if ran.returncode != 0:
                raise RuntimeError(f"dlt ended with {ran.returncode}: {ran.stderr[-2000:]}")
            clock.seconds = json.loads(ran.stdout.splitlines()[-1])["seconds"]


def _environment() -> dict[str, str]:
    """Returns the environment variables of a dlt process: all cores, files small enough to distribute over them, and no
    telemetry.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {
        "TZ": "UTC",
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "RUNTIME__LOG_LEVEL": "ERROR",
        "NORMALIZE__WORKERS": str(cores()),
        "EXTRACT__DATA_WRITER__FILE_MAX_ITEMS": "50000",
        "DATA_WRITER__BUFFER_MAX_ITEMS": "20000",
    }


def dlt_python(progress: Callable[[str], None]) -> Path | None:
    """Returns the Python of dlt's environment; None if it cannot be installed."""
    same = [f"{name}=={version(name)}" for name in ("deltalake", "pyarrow", "orjson")]
    return python_with([DLT, *same], name="dlt", benchmark=BENCHMARK.name, progress=progress)


BENCHMARK = Benchmark(
    name="peers",
    summary=(
        "30 tables exactly once, against dlt with Delta tables and a loop of Spark writes, with all rows verified"
    ),
    run=run,
    tiny=TinySize(),
)
