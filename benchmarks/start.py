"""`start`: the phases of a stream's start, from the scheduler's decision to the first batch.

- `spark_submit_to_first_batch`: the start of a new pipeline's stream whose first object has landed, as Airflow's task
  starts it, against its target. Spark has the settings of the embedded stack. Parts are the phases in order:
  - `launcher_seconds`: until the JVM has started Python.
  - `session_seconds`: until the Spark session has started, including the driver's imports.
  - `tables_seconds`: until the lease is acquired and the tables exist.
  - `planning_seconds`: until the query has started and its first batch is planned.
  - `batch_seconds`: until the batch is committed in all tables.
  - `cpu_seconds`: CPU time of all its processes; compare this value on a busy machine.
- `driver_imports`: the imports of a driver, against importing only the libraries it requires.
- `planner_imports`: the imports of the process that plans the batches of a Python source such as Kinesis, against those
  of Spark's own runner.
- `airflow_task`: a task's process until its operator runs: importing Airflow and parsing the DAG file for one task,
  against the same for a file with one empty DAG.
- `session`: the start of a session, with and without the Java class archive.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks import driver_start
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, target_result
from benchmarks.spark_submit import link_library, submit

if TYPE_CHECKING:
    import psutil

_ROOT = Path(__file__).resolve().parents[1]
_JOB = _ROOT / "spark_jobs" / "ingest_stream.py"
_TARGET_SECONDS = 12.0
_PHASE_TIMEOUT_SECONDS = 180.0
_POLL_SECONDS = 0.02
_PHASES = ("launcher_seconds", "session_seconds", "tables_seconds", "planning_seconds", "batch_seconds")
_CPU = "cpu_seconds"
_TABLES = ("events", "buys", "quarantine")
_LIBRARIES = "import boto3, deltalake, duckdb, pyarrow.dataset, pyarrow.parquet, pydantic, pyspark.sql"
_RUNNER = "import pyspark.sql.streaming.python_streaming_source_runner"
#: Sets the module name with which Spark starts the process; the library identifies the planner process by it.
_SOURCE = f"""
import sys
from importlib.machinery import ModuleSpec
{_RUNNER} as runner
sys.modules["__main__"].__spec__ = ModuleSpec(runner.__name__, None)
import deltaworks.sources.kinesis.stream_reader
"""
#: A DAG file and the DAG whose task parses it.
_STREAMS = ("dags/streams.py", "games__stream")


def run(options: Options) -> list[Result]:
    """Measures every phase."""
    imports = [
        _comparison("driver_imports", ("driver", _python("-c", _import_statements(_JOB))), _python("-c", _LIBRARIES)),
        _comparison("planner_imports", ("planner", _python("-c", _SOURCE)), _python("-c", _RUNNER)),
        _comparison("airflow_task", ("stream", _parsing(_STREAMS[0], "--task", _STREAMS[1])), _parsing("--bare", "1")),
    ]
    results = measure(BENCHMARK.name, imports, repeats=options.repeats, progress=options.progress)
    sessions = driver_start.comparisons("session")
    results += measure(BENCHMARK.name, sessions, repeats=options.repeats, progress=options.progress)
    return [*results, _first_batches(options)]


def _comparison(metric: str, ours: tuple[str, list[str]], other: list[str]) -> Comparison:
    name, command = ours
    return Comparison(metric=metric, ours=_side(f"{name}_{metric}", command), other=_side(f"without_{metric}", other))


def _side(name: str, command: list[str]) -> Side:
    def start(clock: Clock) -> None:
        with clock:
            subprocess.run(command, env=_environment(_ROOT), cwd=_ROOT, stdout=subprocess.DEVNULL, check=True)

    return Side(name, start)


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _parsing(*arguments: str) -> list[str]:
    return _python("-m", "benchmarks.dag_parsing", *arguments)


def _import_statements(file: Path) -> str:
    """Returns the top-level import statements of a program."""
    heads = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join(map(ast.unparse, heads))


def _environment(project: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": f"{_ROOT / 'include'}{os.pathsep}{_ROOT}",
        "DELTAWORKS_PROJECT": str(project),
        "DELTAWORKS_ENVIRONMENT": "local",
        "TZ": "UTC",
    }


def _first_batches(options: Options) -> Result:
    """Starts streams in sequence, each in its own project, and returns the median of their seconds."""
    from benchmarks.scratch_folders import scratch_folder

    starts: list[dict[str, float]] = []
    for number in range(options.repeats + 1):
        with scratch_folder(f"start-{number}") as root:
            phases = _first_batch(root)
        options.progress(
            f"start: first batch after {_total_seconds(phases):.2f} s{' (warm-up)' * (not number)}: {phases}"
        )
        starts += [phases] if number else []
    return target_result(
        BENCHMARK.name,
        "spark_submit_to_first_batch",
        [_total_seconds(phases) for phases in starts],
        target=_TARGET_SECONDS,
        sizes={"events": 1_000},
        parts=starts,
    )


def _total_seconds(phases: dict[str, float]) -> float:
    return sum(phases[name] for name in _PHASES)


def _first_batch(root: Path) -> dict[str, float]:
    """Returns the seconds of each phase of one start."""
    from benchmarks.project import declare_project
    from deltaworks.sources.objects.relay.relay import Relay

    declared = {
        "pipeline": "fresh",
        "description": "A stream that starts.",
        "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": "id"},
        "tables": [{"name": "events", "catch_all": True}, {"name": "buys", "when": {"name": "buy"}}],
    }
    (root / "landing").mkdir(parents=True)
    lines = [{"name": "buy" if number % 2 else "view", "id": number, "at": 1_767_225_600} for number in range(1_000)]
    (root / "landing" / "first.json").write_text("\n".join(map(json.dumps, lines)))
    catalog = declare_project(root, declared, landing=root / "landing", spark=_shipped_spark())
    link_library(root)
    environment = catalog.environment
    relay = catalog.relay("landing")
    Relay(relay, lake=environment.lake, queue=None, landing=environment.landing, until_drained=True).run()

    with (root / "driver.log").open("w") as log:
        began = time.time()
        process = submit(root, "ingest_stream", "--pipeline", "fresh", log=log)
        try:
            moments = [began, *_read_milestones(root / "lake", root / "driver.log", process)]
            cpu_seconds = _cpu_seconds(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    phases = {name: after - before for name, (before, after) in zip(_PHASES, pairwise(moments), strict=True)}
    return phases | {_CPU: cpu_seconds}


def _shipped_spark() -> dict[str, Any]:
    """Returns the Spark settings of the embedded stack's environment."""
    declared = yaml.safe_load((_ROOT / "include" / "environments" / "local.yaml").read_text())
    return dict(declared["spark"])


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Returns the CPU seconds of the process and its descendants, including children they have waited for."""
    import psutil

    parent, seconds = psutil.Process(process.pid), 0.0
    for one in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(one.cpu_times()[:4])
    return seconds


def _is_python(process: psutil.Process) -> bool:
    """Whether it is a Python process. A process that ends meanwhile, as the JVM's short-lived children do, is not."""
    import psutil

    try:
        return process.name().startswith("python")
    except psutil.NoSuchProcess:
        return False


def _read_milestones(lake: Path, log: Path, process: subprocess.Popen[bytes]) -> list[float]:
    """Returns the end of each phase in epoch seconds, from start times of processes and files in the lake."""
    import psutil

    from deltaworks.control import paths

    session = _poll_until(process, log, lambda: time.time() if "DELTAWORKS_UI" in log.read_text() else None)
    python = min(child.create_time() for child in psutil.Process(process.pid).children() if _is_python(child))
    checkpoints = lake / Path(paths.checkpoint("fresh", 0, 0)).parents[1]

    def written(file: str) -> float | None:
        return min((path.stat().st_mtime for path in checkpoints.glob(f"*/*/{file}")), default=None)

    committed = _poll_until(process, log, lambda: written("commits/0"))
    planned = written("offsets/0")
    created = f"_delta_log/{0:020d}.json"
    tables = max((lake / paths.table("fresh", name) / created).stat().st_mtime for name in _TABLES)
    if planned is None:
        raise RuntimeError("the stream committed a batch without planning it")
    return [python, session, tables, planned, committed]


def _poll_until(process: subprocess.Popen[bytes], log: Path, probe: Callable[[], float | None]) -> float:
    """Polls `probe` until it returns a value; raises if the process ends or the deadline passes."""
    deadline = time.monotonic() + _PHASE_TIMEOUT_SECONDS
    while (moment := probe()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the stream ended or did not reach the next phase in time:\n{log.read_text()[-2_000:]}")
        time.sleep(_POLL_SECONDS)
    return moment


BENCHMARK = Benchmark(
    name="start",
    summary="the phases of a stream's start: imports, Airflow's task, the session, spark-submit to the first batch",
    run=run,
    tiny=TinySize(),
)
