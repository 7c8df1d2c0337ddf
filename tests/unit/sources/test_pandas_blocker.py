"""The process that plans the batches of a Python data source imports no pandas."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from deltaworks.sources.pandas_blocker import DAEMON_MODULE, PLANNER_MODULE, SOURCE_RUNNERS
from deltaworks.specs.catalog import PROJECT_ROOT

#: Loads a source as Spark's process does, looks at a value by pyarrow, and prints whether pandas came with that.
LOAD = """
import sys, types
import pyspark.sql.streaming.python_streaming_source_runner

program, *more = sys.argv[1:]
sys.modules["__main__"].__spec__, sys.argv = types.SimpleNamespace(name=program), [program, *more]
import deltaworks.sources.kinesis.stream_reader
import pyarrow as pa

assert pa.table({"n": [1]}).to_pylist() == [{"n": 1}]
print("pandas" in sys.modules)
"""


def loads_pandas(*process: str) -> bool:
    library = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include")}
    command = [sys.executable, "-c", LOAD, *process]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=library)
    assert ran.returncode == 0, ran.stderr
    return bool(json.loads(ran.stdout.lower()))


def test_a_planner_imports_no_pandas_although_pyarrow_would() -> None:
    assert not loads_pandas(PLANNER_MODULE)
    assert loads_pandas("another")


def test_earlier_planner_processes_import_no_pandas_and_workers_may() -> None:
    making, preparing = sorted(SOURCE_RUNNERS)

    assert not loads_pandas(DAEMON_MODULE, making)
    assert not loads_pandas(preparing)
    assert loads_pandas(DAEMON_MODULE, "pyspark.worker")


def test_the_module_names_are_sparks() -> None:
    for module in (PLANNER_MODULE, DAEMON_MODULE, *SOURCE_RUNNERS):
        assert importlib.util.find_spec(module) is not None, "Spark has moved it: its processes have pandas again"
