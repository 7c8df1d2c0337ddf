"""`groups`: memory and freshness of ten small pipelines in one driver, compared with one driver each.

Both setups land the same objects at the same rate on local disk, one setup after the other. Memory is the proportional
set size (PSS), which counts a page shared by several processes once. It is summed over all processes of a setup, and
the median after the start is reported. Freshness is the median time from landing to the commit of the batch.

Only one driver per core is measured and its memory is scaled to ten, since more drivers starve each other while they
start. `sizes` contains the number of drivers measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Options, Result, TinySize
from benchmarks.spark_submit import link_library, submit
from benchmarks.versions import cores, versions

if TYPE_CHECKING:
    from deltaworks.tables.lake import Lake

_PIPELINES = 10
#: Generous estimate of an idle driver's memory. It limits how many drivers are started to those that fit in memory.
_DRIVER_BYTES = 1_500 << 20
_TRIGGER_SECONDS = 10.0
_LAND_SECONDS = 10.0
_START_SECONDS = 600.0
_EVENTS = 200


def run(options: Options) -> list[Result]:
    """Measures both setups for `--minutes` each after their start."""
    import psutil

    room = int(psutil.virtual_memory().available // _DRIVER_BYTES)
    drivers = max(1, min(_PIPELINES, room, cores()))
    grouped = _measure_group(_PIPELINES, is_group=True, options=options)
    alone = _measure_group(drivers, is_group=False, options=options)
    sizes = {"pipelines": _PIPELINES, "drivers_measured": drivers, "minutes": options.minutes, "events": _EVENTS}
    scaled = alone["memory"] * _PIPELINES / drivers
    return [
        _result("memory", (grouped["memory"], scaled), "bytes", sizes, grouped),
        _result("freshness", (grouped["freshness"], alone["freshness"]), "seconds", sizes, grouped),
    ]


def _measure_group(pipelines: int, *, is_group: bool, options: Options) -> dict[str, float]:
    side = "one driver" if is_group else f"{pipelines} drivers"
    with tempfile.TemporaryDirectory(prefix="deltaworks-groups-") as folder:
        project = _GroupProject(Path(folder), pipelines, is_group=is_group)
        with project.running() as processes:
            project.await_first_batches(processes)
            options.progress(f"groups: {side}: all {pipelines} pipelines land")
            samples, end = [], time.monotonic() + 60 * options.minutes
            while time.monotonic() < end:
                project.land()
                time.sleep(_LAND_SECONDS)
                samples.append(sum(_memory(processes).values()))
            parts = _memory(processes)
        memory, freshness = statistics.median(samples), project.freshness()
    options.progress(f"groups: {side}: {memory / (1 << 20):.0f} MiB, {freshness:.1f} s to the commit")
    return {"memory": memory, "freshness": freshness, **{f"{kind}_bytes": size for kind, size in parts.items()}}


class _GroupProject:
    """A project of small pipelines on local disk."""

    def __init__(self, root: Path, pipelines: int, *, is_group: bool) -> None:
        self._root, self._is_group = root, is_group
        self.names = [f"p{number:02}" for number in range(pipelines)]
        self._files = 0
        self._declare()

    def _declare(self) -> None:
        here = {"root": f"file://{self._root}/lake"}
        local = {"environment": "local", "lake": here, "landing": {"root": f"file://{self._root}/landing"}}
        java = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m"
        self._write("environments/local.yaml", {**local, "messaging": {}, "spark": {"java_options": java}})
        relay = {"relay": "landing", "description": "files", "owner": "benchmark", "buckets": ["landing"]}
        self._write("relays/landing.yaml", {**relay, "queue_url": "http://localhost/queue"})
        for name in self.names:
            declared = {
                "pipeline": name,
                "description": "a small pipeline",
                "owner": "benchmark",
                "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing", "prefix": f"{name}/"},
                "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_millis"}},
                "tables": [{"name": "events", "catch_all": True}],
                "stream": {"trigger_seconds": _TRIGGER_SECONDS},
            }
            self._write(f"pipelines/{name}/pipeline.yaml", declared | ({"stream_group": "g"} if self._is_group else {}))
        link_library(self._root)

    def _write(self, path: str, content: dict[str, Any]) -> None:
        file = self._root / "include" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))

    @property
    def lake(self) -> Lake:
        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake

        return Lake(StorageSpec(root=f"file://{self._root}/lake"))

    def land(self) -> None:
        """Lands one object per pipeline, whose events contain their landing time."""
        from datetime import UTC, datetime

        from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
        from deltaworks.sources.objects.relay.messages import FileEvent

        now, self._files, received = datetime.now(UTC), self._files + 1, []
        for name in self.names:
            event = {"name": "e", "at": int(now.timestamp() * 1000)}
            data = "\n".join([json.dumps(event)] * _EVENTS).encode()
            path = self._root / "landing" / name / f"{self._files:06}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            key = f"{name}/{path.name}"
            tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            announced = FileEvent("landing", key, len(data), tag, None, now, "ObjectCreated:Put", None)
            received.append(ReceivedEvent(announced, key, now))
        FileEventLogWriter(self.lake, "landing", epoch=self._files).append(received)

    @contextmanager
    def running(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Starts all drivers by spark-submit, as Airflow does, and stops them when the block ends."""
        jobs = [("ingest_group", "--group", "g")] if self._is_group else []
        jobs = jobs or [("ingest_stream", "--pipeline", name) for name in self.names]
        processes = [self._submit(*job) for job in jobs]
        try:
            yield processes
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _submit(self, job: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._root / f"{job}-{arguments[-1]}.log").open("w") as log:
            return submit(self._root, job, *arguments, log=log)

    def await_first_batches(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Waits until each pipeline has landed rows. All processes are running then."""
        from deltaworks.control import paths

        self.land()
        deadline = time.monotonic() + _START_SECONDS
        waiting = set(self.names)
        while waiting:
            waiting = {name for name in waiting if not self._rows(paths.table(name, "events"))}
            if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                tails = [log.read_text()[-2_000:] for log in self._root.glob("*.log")]
                raise RuntimeError(f"these pipelines landed no rows: {sorted(waiting)}\n" + "\n".join(tails))
            time.sleep(1)

    def _rows(self, key: str) -> int:
        rows = self.lake.rows(key, columns=["_batch_id"])
        return 0 if rows is None else rows.num_rows

    def freshness(self) -> float:
        """Returns the median seconds from landing to the commit, without the objects of the start."""
        from deltaworks.control import paths
        from deltaworks.tables.log import commit_history

        seconds: list[float] = []
        for name in self.names:
            key = paths.table(name, "events")
            table = self.lake.open(key)
            if table is None:
                continue
            commits = commit_history(self.lake, key, newest=table.version())
            at = {str(commit.metadata.get("batch")): commit.at for commit in commits if commit.at is not None}
            rows = self.lake.rows(key, columns=["_batch_id", "event_time"])
            pairs = set() if rows is None else {(row["_batch_id"], row["event_time"]) for row in rows.to_pylist()}
            first = min((landed for _, landed in pairs), default=None)
            seconds += [
                (at[str(batch)] - landed).total_seconds()
                for batch, landed in pairs
                if landed != first and str(batch) in at
            ]
        return statistics.median(seconds)


def _memory(processes: Sequence[subprocess.Popen[bytes]]) -> dict[str, int]:
    """Returns the PSS in bytes of the processes and their descendants, by kind of process."""
    import psutil

    sizes = dict.fromkeys(("jvm", "planners", "python"), 0)
    for process in processes:
        parent = psutil.Process(process.pid)
        for child in (parent, *parent.children(recursive=True)):
            try:
                command = " ".join(child.cmdline())
                kind = "jvm" if "java" in child.name() else "planners" if "streaming_source" in command else "python"
                sizes[kind] += child.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    return sizes


def _result(
    metric: str, sides: tuple[float, float], unit: str, sizes: dict[str, int | float], parts: dict[str, float]
) -> Result:
    ours, other = sides
    return Result(
        benchmark=BENCHMARK.name,
        metric=metric,
        ours=round(ours, 2),
        other=round(other, 2),
        unit=unit,
        ratio=round(ours / other, 3),
        ours_name="one_driver",
        other_name="a_driver_each",
        ours_all=(round(ours, 2),),
        other_all=(round(other, 2),),
        ours_parts={name: size for name, size in parts.items() if name.endswith("_bytes")},
        other_parts={},
        sizes=sizes,
        cores=cores(),
        versions=versions(),
    )


BENCHMARK = Benchmark(
    name="groups",
    summary="ten small pipelines in one driver, against one driver each: memory, and delay from landing to commit",
    run=run,
    tiny=TinySize(minutes=0.2, constants={"_PIPELINES": 2, "_TRIGGER_SECONDS": 2.0, "_LAND_SECONDS": 2.0}),
)
