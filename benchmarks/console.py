"""`console`: response times of the operator console with 30 pipelines and 1,000 tables, and its effect on the server
that hosts it.

Requests go over HTTP to one server process that hosts the console as Airflow's API server does. The benchmark compares
the console's overview with the server's version endpoint, and the version endpoint while ten clients request the
overview with the same endpoint on an idle server. Storage is a folder of control objects as 30 streams write them;
Spark is not used.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.console_server import READY_PREFIX
from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, measure
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.objects import LocalObjects
from deltaworks.control.summaries.stream import BatchSummary, HourSummary, RecentBatches, StreamHours

PIPELINES, TABLES = 30, 1_000
_REQUESTS = 40
_CONCURRENT_READERS = 10
_ENVIRONMENT = 'environment: local\nlake: {root: "file://%s"}\nlanding: {root: "file://%s"}\nmessaging: {}\n'
_RELAY = "relay: landing\ndescription: d\nowner: o\nqueue_url: env:QUEUE\nbuckets: [landing]\n"


def write_project(root: Path) -> None:
    """Writes a project of 30 pipelines with the control objects of running streams."""
    include = root / "include"
    for folder in ("environments", "relays"):
        (include / folder).mkdir(parents=True)
    (include / "environments" / "local.yaml").write_text(_ENVIRONMENT % (root / "lake", root / "landing"))
    (include / "relays" / "landing.yaml").write_text(_RELAY)
    objects = LocalObjects(root / "lake")
    for number in range(PIPELINES):
        name = f"p{number:02d}"
        folder = include / "pipelines" / name
        folder.mkdir(parents=True)
        tables = "".join(f"  - {{name: t{one}, when: {{name: t{one}}}}}\n" for one in range(TABLES // PIPELINES))
        (folder / "pipeline.yaml").write_text(
            f"pipeline: {name}\ndescription: d\nowner: o\n"
            f"source: {{kind: s3_sqs, relay: landing, bucket: landing, prefix: {name}/}}\n"
            "event:\n  name: {path: name}\n  time: {path: time, unit: epoch_seconds}\n"
            f"tables:\n  - {{name: rest, catch_all: true}}\n{tables}"
        )
        _write_objects(objects, name)


def _write_objects(objects: LocalObjects, name: str) -> None:
    now = utc_now()
    beat = Heartbeat(
        pipeline=name,
        owner="o",
        epoch=1,
        run="r",
        state="running",
        # In the future, so that the heartbeat is not stale by the end of the benchmark.
        written_at=(now + timedelta(hours=1)).isoformat(),
        started_at=now.isoformat(),
        trigger_seconds=60,
        batch_id=240,
    )
    objects.put(paths.heartbeat(paths.pipeline_control(name)), beat.encode())
    seconds = {"prepare_seconds": 3.0, "commit_seconds": 0.5, "complete_seconds": 0.2}
    counts = {"rows": 12_400, "quarantined": 3, "files": 19, "bytes": 3_100_000, "tables": TABLES // PIPELINES}
    batches = tuple(
        BatchSummary(
            batch_id=back,
            at=(now - timedelta(seconds=15 * (240 - back))).isoformat(),
            arrival_ages=tuple(float(age) for age in range(20)),
            **seconds,
            **counts,
        )
        for back in range(240)
    )
    objects.put(
        paths.recent_batches(name), RecentBatches(pipeline=name, written_at=iso_now(), batches=batches).encode()
    )
    hours = tuple(
        HourSummary(at=(now - timedelta(hours=back)).strftime("%Y-%m-%dT%H:00:00+00:00"), batches=240, rows=3_000_000)
        for back in range(24 * 60, -1, -1)
    )
    objects.put(paths.stream_hours(name), StreamHours(pipeline=name, written_at=iso_now(), hours=hours).encode())


@contextmanager
def serving() -> Iterator[str]:
    """Runs the server as a separate process, so that clients do not use its interpreter. Yields the URL that opens the
    console.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.console_server"], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY_PREFIX):
            raise RuntimeError(f"the console's server did not start: {line!r}")
        yield line.removeprefix(READY_PREFIX).strip()
    finally:
        process.terminate()
        process.wait(timeout=30)


def p95(seconds: list[float]) -> float:
    """Returns the 95th percentile of the measurements."""
    return statistics.quantiles(seconds, n=20)[-1]


def _request_seconds(client: httpx2.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


def request_until(base_url: str, cookies: dict[str, str], ended: Any, response_times: Any) -> None:
    """Requests the overview from ten threads until `ended` is set. Puts two lists of response times: the first request
    of each thread, then all later ones.
    """
    with (
        httpx2.Client(base_url=base_url, cookies=cookies, timeout=60) as client,
        ThreadPoolExecutor(_CONCURRENT_READERS) as pool,
    ):
        response_times.put(list(pool.map(lambda _: _request_seconds(client, "/"), range(_CONCURRENT_READERS))))
        taken: list[float] = []

        def asks() -> None:
            while not ended.is_set():
                taken.append(_request_seconds(client, "/"))

        for _ in range(_CONCURRENT_READERS):
            pool.submit(asks)
        pool.shutdown()
        response_times.put(taken)


def _cpu_seconds(client: httpx2.Client) -> float:
    """Returns the CPU seconds the server process has used so far."""
    return float(client.get("/cpu").raise_for_status().json()["seconds"])


def run(options: Options) -> list[Result]:
    """Measures the overview, and the version endpoint with and without ten concurrent readers."""
    before = {name: os.environ.get(name) for name in ("DELTAWORKS_PROJECT", "DELTAWORKS_ENVIRONMENT")}
    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder))
        os.environ |= {"DELTAWORKS_PROJECT": folder, "DELTAWORKS_ENVIRONMENT": "local"}
        try:
            with serving() as opened, httpx2.Client(base_url=opened.rpartition("/open/")[0], timeout=60) as client:
                client.get(opened.removeprefix(str(client.base_url)), follow_redirects=True).raise_for_status()
                return _measure_pages(client, options)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _measure_pages(client: httpx2.Client, options: Options) -> list[Result]:
    def overview(clock: Clock) -> None:
        before = _cpu_seconds(client)
        with clock:
            taken = [_request_seconds(client, "/") for _ in range(_REQUESTS)]
        clock.record(p95_seconds=p95(taken), cpu_seconds=(_cpu_seconds(client) - before) / _REQUESTS)

    def idle(clock: Clock) -> None:
        with clock:
            taken = [_request_seconds(client, "/version") for _ in range(_REQUESTS)]
        clock.record(api_seconds=statistics.median(taken))

    def with_ten_readers(clock: Clock) -> None:
        spawn = multiprocessing.get_context("spawn")
        ended, slow = spawn.Event(), spawn.SimpleQueue()
        # A separate process, so that the clients' own CPU time is not measured as response time of the server.
        asking = spawn.Process(target=request_until, args=(str(client.base_url), dict(client.cookies), ended, slow))
        asking.start()
        began = slow.get()
        with clock:
            taken = [_request_seconds(client, "/version") for _ in range(_REQUESTS)]
        ended.set()
        every = slow.get()
        asking.join()
        clock.record(p95_ten_at_once_seconds=p95([*began, *every]), api_seconds=statistics.median(taken))

    sizes = {"pipelines": PIPELINES, "tables": TABLES}
    sides = Side("overview", overview), Side("version_idle", idle), Side("version_with_ten_readers", with_ten_readers)
    comparisons = [
        Comparison(metric="overview_vs_version", ours=sides[0], other=sides[1], sizes=sizes),
        Comparison(metric="api_version_vs_idle", ours=sides[2], other=sides[1], sizes=sizes),
    ]
    return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)


BENCHMARK = Benchmark(
    name="console",
    summary="response times of the console's overview, and of its host while ten clients read the overview",
    run=run,
)
