"""Several streams append to one Delta table concurrently, each with its own checkpoint.

The streams are separate processes with their own JVMs, on a table of an S3 server. A repeated batch is harmless because
of its transaction: the writer's application id and the batch number. Tests also run without each of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs, parquet

from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.servers.object_store import lake_storage
from tests.integration.log_store.proof import lake_server
from tests.spark.engine.appending_stream import ENDED, READY, ROOT

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("appending_stream.py")
SCHEMA = pa.schema({"writer": pa.string(), "number": pa.int64()})
FILES, ROWS = 6, 5
STARTED_SECONDS, ENDED_SECONDS = 120.0, 120.0


@dataclass
class Stage:
    """A table, the writers' input folders, and the running writers."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def create(self) -> None:
        address = f"{ROOT}/all"
        write_deltalake(address, SCHEMA.empty_table(), storage_options=lake_storage(ROOT).deltalake_options())

    def table(self) -> DeltaTable:
        return DeltaTable(f"{ROOT}/all", storage_options=lake_storage(ROOT).deltalake_options())

    def input_of(self, writer: str) -> Counter[tuple[str, int]]:
        """Writes a writer's input; returns its rows."""
        (self.folder / writer).mkdir()
        for number in range(FILES):
            rows = [{"writer": writer, "number": number * ROWS + each} for each in range(ROWS)]
            path = self.folder / writer / f"{number:03}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            # The order of a folder's files is that of their times.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return Counter((writer, number) for number in range(FILES * ROWS))

    def landed(self) -> Counter[tuple[str, int]]:
        return Counter((row["writer"], row["number"]) for row in self.table().to_pyarrow_table().to_pylist())

    def start(self, writer: str, *, app_id: str | None, checkpoint: str = "", **more: Any) -> subprocess.Popen[str]:
        """Starts a writer, which waits for `go`."""
        given = {
            "input": str(self.folder / writer),
            "table": ROOT.replace("s3://", "s3a://") + "/all",
            "checkpoint": f"{ROOT.replace('s3://', 's3a://')}/checkpoints/{checkpoint or writer}",
            "app_id": app_id,
            "folder": str(self.folder),
            **more,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        environment |= {"PYTHONPATH": str(PROJECT_ROOT / "include"), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.folder / f"{writer}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(given)],
                env=environment,
                cwd=self.folder,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with lake_server(tmp_path / "lake"):
        found = Stage(tmp_path)
        found.create()
        yield found
        found.close()


def go(*processes: subprocess.Popen[str]) -> None:
    """Lets all writers start at the same time."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def end_of(process: subprocess.Popen[str]) -> str:
    """The condition a writer ended with; None if it was killed."""
    out, _ = process.communicate(timeout=ENDED_SECONDS)
    ends = [line.removeprefix(ENDED).strip() for line in out.splitlines() if line.startswith(ENDED)]
    return ends[0] if ends else ""


def test_streams_append_concurrently_and_a_killed_one_resumes_without_loss_or_duplicates(stage: Stage) -> None:
    owed = stage.input_of("batches") + stage.input_of("sink")
    writers = [stage.start("batches", app_id="team-a", kill_at=3), stage.start("sink", app_id=None)]
    go(*writers)

    assert [end_of(writer) for writer in writers] == ["", "well"]
    again = stage.start("batches", app_id="team-a")
    go(again)
    assert end_of(again) == "well"

    assert stage.landed() == owed
    turns = [who for who, _ in groupby(writers_of_commits(stage))]
    assert len(turns) > 2, f"they took no turns, so one came after the other: {turns}"


def test_without_an_application_id_a_repeated_batch_is_duplicated(stage: Stage) -> None:
    owed = stage.input_of("batches")
    go(killed := stage.start("batches", app_id="", kill_at=3))
    assert end_of(killed) == ""

    go(again := stage.start("batches", app_id=""))
    assert end_of(again) == "well"

    assert (stage.landed() - owed).total() == ROWS
    assert not owed - stage.landed()


def test_writers_with_the_same_application_id_lose_batches(stage: Stage) -> None:
    owed = stage.input_of("one") + stage.input_of("other")
    for writer in ("one", "other"):
        go(process := stage.start(writer, app_id="shared"))
        assert end_of(process) == "well"

    assert (owed - stage.landed()).total() == FILES * ROWS


@pytest.mark.parametrize("app_id", ["team-a", ""])
def test_of_two_writers_on_one_checkpoint_one_is_refused_by_name(stage: Stage, app_id: str) -> None:
    owed = stage.input_of("batches")
    first = stage.start("batches", app_id=app_id, hold_at=2)
    go(first)
    deadline = time.monotonic() + STARTED_SECONDS
    while not (stage.folder / "held").exists():
        assert time.monotonic() < deadline, "the first writer did not come to its batch"
        time.sleep(0.1)

    second = stage.start("batches", app_id=app_id)
    go(second)
    ended_second = end_of(second)
    (stage.folder / "go").touch()

    assert (end_of(first), ended_second) == ("CHECKPOINT_IN_USE", "well")
    # The batch of both writers is in the table once because of its transaction: the checkpoint is checked too late.
    assert stage.landed() - owed == (Counter() if app_id else Counter({("batches", 10 + each): 1 for each in range(5)}))
    assert not owed - stage.landed()


def writers_of_commits(stage: Stage) -> list[str]:
    """The writer of each commit of the table, oldest first."""
    table = stage.table()
    found = []
    for version in range(1, table.version() + 1):
        table.load_as_version(version)
        files = set(table.file_uris())
        table.load_as_version(version - 1)
        added = files - set(table.file_uris())
        if added:
            options = lake_storage(ROOT).arrow_options()
            path = added.pop().removeprefix("s3://")
            rows = parquet.read_table(path, filesystem=fs.S3FileSystem(**options), columns=["writer"])
            found.append(str(rows.column("writer")[0]))
    return found
