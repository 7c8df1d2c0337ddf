"""Every query has a process that plans its batches: it loads what planning takes, and no more."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltaworks.sources.objects.log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.planner_process import DAEMON, MAKERS, PLANNER
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

#: Plans a slice of a log as Spark's process does, and prints what it has loaded.
PLAN = """
import json, sys, types
import pyspark.sql.streaming.python_streaming_source_runner as runner

options, program, *more = sys.argv[1:]
sys.modules["__main__"].__spec__, sys.argv = types.SimpleNamespace(name=program), [program, *more]
from deltaworks.sources.objects.stream import FileEventsStreamReader, SliceLimits, StreamOptions

reader = FileEventsStreamReader(StreamOptions.parse(json.loads(options)))
end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
planned = len(list(reader.read(*reader.partitions(reader.initialOffset(), end))))
print(json.dumps({"end": end["seq"], "planned": planned, "loaded": sorted(sys.modules)}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    storage = StorageSpec(root=f"file://{tmp_path}/lake")
    now = datetime(2025, 1, 1, tzinfo=UTC)
    writer = FileEventLogWriter(Lake(storage), "landing", epoch=1)
    for number in range(3):
        event = FileEvent("landing", f"in/{number}", 10, f"tag{number}", None, now, "ObjectCreated:Put", None)
        writer.append([ReceivedEvent(event, f"m{number}", now)])
    environment = tmp_path / "include" / "environments" / "local.yaml"
    environment.parent.mkdir(parents=True)
    declared = {"environment": "local", "lake": {"root": storage.root}, "landing": {"root": storage.root}}
    environment.write_text(json.dumps(declared | {"messaging": {}}))
    return tmp_path


def planned_by(project: Path, *process: str) -> set[str]:
    """What a process of that name has loaded once it has planned the log's three events."""
    options = {"environment": "local", "relay": "landing", "bucket": "landing", "project": str(project)}
    command = [sys.executable, "-c", PLAN, json.dumps(options), *process]
    library = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=library)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert (answer["end"], answer["planned"]) == (3, 3)
    return set(answer["loaded"])


def test_a_planner_of_files_loads_neither_pandas_nor_clients_of_aws_nor_other_declarations(project: Path) -> None:
    heavy = {"pandas", "botocore", "boto3", "deltaworks.specs.pipeline", "deltaworks.engine"}

    assert heavy & planned_by(project, PLANNER) == set()
    assert heavy & planned_by(project, "another") == {"pandas"}, "pyarrow loads it by itself"


def test_the_processes_before_it_do_without_pandas_too_and_those_that_read_rows_may_have_it(project: Path) -> None:
    making, preparing = sorted(MAKERS)

    assert "pandas" not in planned_by(project, DAEMON, making)
    assert "pandas" not in planned_by(project, preparing)
    assert "pandas" in planned_by(project, DAEMON, "pyspark.worker")


def test_spark_calls_them_so() -> None:
    for module in (PLANNER, DAEMON, *MAKERS):
        assert importlib.util.find_spec(module) is not None, "Spark has moved it: its processes have pandas again"
