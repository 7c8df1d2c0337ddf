"""`collector`: the CPU cost of a request, and response times compared with a disk sync.

Deltaworks' side is the collector as deployed: keys, limits, server timestamps, and a spool that is synced before each
response. It is compared with:

- `spool_vs_bare_asgi`: a uvicorn application that only reads the body and responds, without any durability.
- `spool_vs_lean_asgi`: the same application with the uvicorn features disabled that the collector disables.
- `batch50_vs_single`: requests of fifty events, against the same events in requests of one.
- `spool_vs_put_record`: the client's CPU for boto3's `put_record` of one event, the cost of an endpoint that sends each
  event to Kinesis before it responds.
- `p99_vs_fdatasync`: the 99th percentile of response times at half load, minus 5 ms, against the 99th percentile of a
  sync of 16 KiB.

Seconds are CPU seconds of the server process (of the client for `put_record`), so they do not depend on how busy the
machine is. The exception is the last comparison, which measures both in turns on the same disk.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.collector_server import KEY
from benchmarks.games_files import bench_folder
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, single_result

_CONNECTIONS = 64
_EVENT_BYTES = 410
_BATCH = 50
_SYNC_BYTES = 16 << 10
_ALLOWANCE_SECONDS = 0.005


def run(options: Options) -> list[Result]:
    """Sends a tenth as many requests as `--events`, at least 2,000."""
    requests = max(options.events // 10, 2000)
    with (
        tempfile.TemporaryDirectory(dir=bench_folder()) as folder,
        _server("bare") as bare,
        _server("lean") as lean,
        _server("kinesis") as kinesis,
        _server("spool", folder) as spool,
    ):
        single = Side("spool_single", _measure_load(spool, _request(1), requests))
        batches = Side("spool_batches_of_50", _measure_load(spool, _request(_BATCH), requests // _BATCH))
        bare_side = Side("bare_asgi", _measure_load(bare, _request(1), requests))
        lean_side = Side("lean_asgi", _measure_load(lean, _request(1), requests))
        put_record = Side("put_record", _put_record(kinesis, requests))
        comparisons = [
            _comparison("spool_vs_bare_asgi", single, bare_side, requests),
            _comparison("spool_vs_lean_asgi", single, lean_side, requests),
            _comparison("batch50_vs_single", batches, single, requests),
            _comparison("spool_vs_put_record", single, put_record, requests),
        ]
        results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
        return [*results, _sync_delay(spool, Path(folder), requests)]


def _comparison(metric: str, ours: Side, other: Side, requests: int) -> Comparison:
    sizes = {"events": requests, "event_bytes": _EVENT_BYTES, "connections": _CONNECTIONS}
    return Comparison(metric=metric, ours=ours, other=other, sizes=sizes)


class _Server:
    """A server process under load, and its CPU time."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port = port
        self._process = psutil.Process(process.pid)

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def _server(kind: str, folder: str = "") -> Iterator[_Server]:
    command = [sys.executable, "-m", "benchmarks.collector_server", kind, "--folder", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        yield _Server(json.loads(process.stdout.readline().partition(" ")[2])["port"], process)
        process.terminate()


def _event(number: int) -> dict[str, object]:
    event: dict[str, object] = {
        "type": "track",
        "event": "level_passed",
        "messageId": f"{number:032x}",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "properties": {"device_id": "d" * 32, "level": number, "score": 12.5},
    }
    return event | {"padding": "x" * (_EVENT_BYTES - len(json.dumps(event)) - 15)}


def _request(events: int) -> bytes:
    body = json.dumps({"batch": [_event(number) for number in range(events)], "sentAt": "2026-03-01T12:00:00.000Z"})
    if events == 1:
        body = json.dumps(_event(1))
    path = "/v1/track" if events == 1 else "/v1/batch"
    credentials = base64.b64encode(f"{KEY}:".encode()).decode()
    lines = [f"POST {path} HTTP/1.1", "Host: bench", f"Authorization: Basic {credentials}"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


def _measure_load(server: _Server, request: bytes, requests: int) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        begun, wall = server.cpu_seconds(), time.perf_counter()
        delays = asyncio.run(_load(server.port, request, requests, _CONNECTIONS))
        wall = time.perf_counter() - wall
        clock.seconds = server.cpu_seconds() - begun
        clock.record(requests_per_cpu_second=requests / clock.seconds, wall_seconds=wall, p99_seconds=_p99(delays))

    return run


async def _load(port: int, request: bytes, requests: int, connections: int, *, pause_seconds: float = 0) -> list[float]:
    """Sends requests over several connections, sequentially on each. Returns the response time of each request in
    seconds.
    """
    delays: list[float] = []

    async def client(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            begun = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise AssertionError(head.decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            delays.append(time.perf_counter() - begun)
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
        writer.close()

    await asyncio.gather(*(client(max(1, requests // connections)) for _ in range(connections)))
    return delays


def _put_record(server: _Server, requests: int) -> Callable[[Clock], None]:
    import boto3

    client = boto3.session.Session().client(
        "kinesis",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
    )
    data, count = json.dumps(_event(1)).encode(), max(200, requests // 20)

    def run(clock: Clock) -> None:
        begun = time.process_time()
        for _ in range(count):
            client.put_record(StreamName="bench", Data=data, PartitionKey="1")
        clock.seconds = (time.process_time() - begun) * requests / count
        clock.record(requests_per_cpu_second=requests / clock.seconds)

    return run


def _sync_delay(server: _Server, folder: Path, requests: int) -> Result:
    """Measures response times at half load and syncs of the same disk, in turns."""
    request, delays, syncs = _request(1), [], []
    for _ in range(5):
        syncs += _syncs(folder / "sync", 100)
        delays += asyncio.run(_load(server.port, request, requests // 10, _CONNECTIONS, pause_seconds=0.05))
    ours, other = _p99(delays) - _ALLOWANCE_SECONDS, _p99(syncs)
    parts = {"p99_answer_seconds": _p99(delays), "p50_answer_seconds": statistics.median(delays)}
    parts["p50_fdatasync_seconds"] = statistics.median(syncs)
    return single_result(
        BENCHMARK.name,
        "p99_vs_fdatasync",
        (max(0.0, ours), other),
        other_name="fdatasync_of_16_kib",
        sizes={"requests": len(delays), "syncs": len(syncs), "connections": _CONNECTIONS},
        digits=5,
        parts=parts,
    )


def _syncs(path: Path, count: int) -> list[float]:
    data, seconds = os.urandom(_SYNC_BYTES), []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(count):
        os.write(descriptor, data)
        begun = time.perf_counter()
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - begun)
    os.close(descriptor)
    return seconds


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


BENCHMARK = Benchmark(
    name="collector",
    summary="a request to the collector with its spool, against a bare ASGI application and put_record",
    run=run,
    tiny=TinySize(),
)
