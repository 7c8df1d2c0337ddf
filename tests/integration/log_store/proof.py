"""Runs concurrent writers of one table and compares their acknowledged commits with the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyarrow.fs import FileSelector

from deltaworks.specs.catalog import project_root
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from sandbox.servers.object_store import ObjectStoreAddress, lake_storage, running_object_store
from tests.integration.log_store.writer import READY, ROOT, SCHEMA, TABLE

#: Paths of Delta commits, for a proxy's faults.
COMMIT_FILES = r"/_delta_log/\d{20}\.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A writer process: its kind, number of commits, and endpoint."""

    kind: str
    name: str
    commits: int
    endpoint: str | None = None
    protected: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of all commits.

    `doubled` holds ids that are in the table twice, and files added by two commits. A table reader sees such a file
        once,
    because it has one path, but a stream from the table reads its rows twice.
    """

    acknowledged: int
    failed: Counter[str]
    lost: frozenset[str]
    doubled: frozenset[str]
    table_version: int
    seconds: float

    def __str__(self) -> str:
        failures = ", ".join(f"{count} x {reason}" for reason, count in self.failed.most_common(5)) or "none"
        return (
            f"{self.acknowledged} acknowledged commits in {self.seconds:.0f} s, lost {len(self.lost)}, "
            f"doubled {len(self.doubled)}, table version {self.table_version}, not acknowledged: {failures}"
        )


@contextmanager
def lake_server(directory: Path) -> Iterator[ObjectStoreAddress]:
    """Runs an object store with the lake's bucket, which this process and its writers use as the lake."""
    with running_object_store(directory, buckets=["deltaworks-lake"]) as address:
        before = {name: os.environ.get(name) for name in address.environment()}
        os.environ.update(address.environment())
        try:
            yield address
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def create_table() -> None:
    """Creates the empty table for all writers; checkpoints are frequent, so that a snapshot needs few reads."""
    properties = {"delta.checkpointInterval": "10"}
    Lake(lake_storage(ROOT)).ensure(TABLE, SCHEMA, user_metadata="{}", properties=properties)


def run_appends(writers: Sequence[Writer], *, work: Path, seconds: float) -> Verdict:
    """Lets the writers append concurrently to one table, then checks the table."""
    create_table()
    took, outcomes = run_writers(writers, work=work, seconds=seconds)
    table = present(Lake(lake_storage(ROOT)).open(TABLE))
    held = Counter(table.to_pyarrow_table(columns=["id"]).column("id").to_pylist())
    added = added_files()
    told = {identity for identity, outcome in outcomes.items() if outcome == "ok"}
    return Verdict(
        acknowledged=len(told),
        failed=Counter(outcome for outcome in outcomes.values() if outcome != "ok"),
        lost=frozenset(told - held.keys()),
        doubled=frozenset(name for name, count in (held + added).items() if count > 1),
        table_version=table.version(),
        seconds=took,
    )


def added_files() -> Counter[str]:
    """Returns how many commits in the table's log add each data file."""
    filesystem, log = Lake(lake_storage(ROOT)).filesystem, f"{ROOT.removeprefix('s3://')}/{TABLE}/_delta_log"
    commits = [found.path for found in filesystem.get_file_info(FileSelector(log)) if found.extension == "json"]
    added: Counter[str] = Counter()
    for commit in commits:
        with filesystem.open_input_stream(commit) as stream:
            actions = [json.loads(line) for line in stream.read().splitlines()]
        added.update(action["add"]["path"] for action in actions if "add" in action)
    return added


def run_writers(writers: Sequence[Writer], *, work: Path, seconds: float) -> tuple[float, dict[str, str]]:
    """Runs the writers to their end; returns the seconds and each commit's outcome."""
    with started_writers(writers, work=work, seconds=seconds) as processes:
        started = time.monotonic()
        codes = [process.wait(seconds + 120) for process in processes]
        took = time.monotonic() - started
    assert codes == [0] * len(codes), f"writers ended with {codes}; their output is in {work}"
    lines = [line for one in writers for line in (work / f"{one.name}.report").read_text().splitlines()]
    return took, dict(line.split("\t", 1) for line in lines)  # type: ignore[misc]


@contextmanager
def started_writers(writers: Sequence[Writer], *, work: Path, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts writers that begin together once all are ready; kills those still running at the end."""
    processes = [_start(one, work=work, seconds=seconds) for one in writers]
    try:
        for process in processes:
            _await_ready(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            _kill_with_children(process)


def _start(one: Writer, *, work: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.log_store.writer", one.kind, "--name", one.name]
    command += ["--commits", str(one.commits), "--seconds", str(seconds), "--report", str(work / f"{one.name}.report")]
    if not one.protected:
        command.append("--unprotected")
    root = project_root()
    environment = {**os.environ, "PYTHONPATH": f"{root / 'include'}{os.pathsep}{root}"}
    if one.endpoint is not None:
        environment["DELTAWORKS_LAKE_ENDPOINT"] = one.endpoint
    with (work / f"{one.name}.log").open("w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=work
        )


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == READY:
            return
    raise AssertionError(f"{process.args} ended with {process.wait()} before it was ready")


def _kill_with_children(process: subprocess.Popen[str]) -> None:
    """Sends SIGKILL to the writer and its JVM together: a JVM that outlives its Python keeps writing for a while."""
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
