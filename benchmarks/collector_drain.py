"""`collector_drain`: the cost of draining a collector's spool, compared with receiving the events.

Both sides are CPU seconds of one process for the same events: the collector that receives them over HTTP in batches of
50 and makes them durable, and the drain that reads them from the spool, packs them and puts them into a bucket. At a
ratio of 0.5, a drain can deliver twice as many events as the collector receives.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx2
import psutil

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure
from collector.delivery import CloseThresholds
from collector.drain import Drain, LandingDestination
from collector.sinks.landing import LandingSink
from collector.spool_folder import SpoolFolder
from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.servers.object_store import free_port

_KEY, _BUCKET, _BATCH = "a-key", "landing", 50
_PAD = "x" * 330
_READY_SECONDS = 60.0


def run(options: Options) -> list[Result]:
    """Compares the drain with the input."""
    with tempfile.TemporaryDirectory() as folder, _server() as client:
        root = Path(folder)
        _write_project(root)
        taken = root / "taken"
        _fill_spool(root, taken, options.events)  # each repetition drains a copy of this spool

        def with_drain(clock: Clock) -> None:
            spool = root / "drained"
            shutil.copytree(taken, spool)
            clock.seconds += _drain(spool / "w0", client)
            shutil.rmtree(spool)

        def with_door(clock: Clock) -> None:
            spool = root / "input"
            clock.seconds += _fill_spool(root, spool, options.events)
            shutil.rmtree(spool)

        comparison = Comparison(
            metric="drain_vs_input",
            ours=Side("drain of the spool", with_drain),
            other=Side("input over HTTP", with_door),
            sizes={"events": options.events, "events_per_request": _BATCH},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


def _write_project(root: Path) -> None:
    folder = root / "include" / "collectors"
    folder.mkdir(parents=True)
    (root / "include" / "pipelines" / "shop").mkdir(parents=True)
    (root / "include" / "pipelines" / "shop" / "pipeline.yaml").write_text("pipeline: shop\n")
    source = {
        "pipeline": "shop",
        "keys": [{"sha256": hashlib.sha256(_KEY.encode()).hexdigest()}],
        "sink": {"kind": "landing", "bucket": _BUCKET, "prefix": "shop/"},
    }
    spec = {
        "collector": "edge",
        "listen": {"host": "127.0.0.1", "port": 0, "metrics_port": 0},
        "limits": {"drain_seconds": 0},
        "sources": {"shop": source},
    }
    (folder / "edge.yaml").write_text(json.dumps(spec))


def _fill_spool(root: Path, spool: Path, events: int) -> float:
    """Posts events to a collector that does not deliver them. Returns the CPU seconds of its process."""
    command = [sys.executable, "-m", "collector", "edge", "--spool", str(spool / "w0"), "--project", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT / "include") as process:
        if process.stdout is None:
            raise RuntimeError("the collector has no output")
        port = next(
            json.loads(line.partition(" ")[2])["port"]
            for line in process.stdout
            if line.startswith("COLLECTOR_LISTENING ")
        )
        measured = psutil.Process(process.pid)
        before = _cpu_seconds(measured)
        with httpx2.Client(auth=(_KEY, ""), timeout=60) as client:
            for start in range(0, events, _BATCH):
                numbers = range(start, min(events, start + _BATCH))
                batch = [{"name": "order", "messageId": str(number), "pad": _PAD} for number in numbers]
                client.post(f"http://127.0.0.1:{port}/v1/batch", json={"batch": batch}).raise_for_status()
        spent = _cpu_seconds(measured) - before
        process.terminate()
        process.stdout.read()
    return spent


def _drain(path: Path, client: Any) -> float:
    """Delivers all events of a spool folder. Returns the CPU seconds of this process."""
    folder = SpoolFolder.acquire(path)
    way = LandingDestination(
        sink=LandingSink(client, _BUCKET), prefix=f"{time.time_ns()}/", thresholds=CloseThresholds()
    )
    drain = Drain(folder, {"shop": way})
    before = time.process_time()
    drain.start()
    if not drain.stop(timeout_seconds=600):
        raise RuntimeError("the spool was not drained")
    spent = time.process_time() - before
    folder.close()
    return spent


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _server() -> Iterator[Any]:
    """Runs an S3 server in another process, whose CPU is not counted, and yields a client for it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            end = time.monotonic() + _READY_SECONDS
            while not _answers(address):
                if time.monotonic() > end:
                    raise RuntimeError("the server of the bucket does not answer")
                time.sleep(0.2)
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
            client: Any = boto3.session.Session().client("s3", endpoint_url=address, **keys)
            client.create_bucket(Bucket=_BUCKET)
            yield client
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        httpx2.get(f"{address}/moto-api/", timeout=2)
    except httpx2.TransportError:
        return False
    return True


BENCHMARK = Benchmark(
    name="collector_drain", summary="CPU time to drain a collector's spool, against the CPU time to fill it", run=run
)
