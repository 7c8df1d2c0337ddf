"""Runs a collector as a separate process, with a bucket behind a fault-injecting proxy."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx2
import psutil

from sandbox.servers.fault_proxy import FaultProxy, running_fault_proxy
from tests.moto_server import running_moto
from tests.unit.specs.conftest import PIPELINE, write_project
from tests.waiting import eventually

KEY = "a-key"
BUCKET = "landing"
ENVIRONMENT = """\
environment: local
lake: {root: "file://LAKE"}
landing:
  root: s3://landing
  endpoint: env:DELTAWORKS_AWS_ENDPOINT
  path_style: true
  access_key: env:DELTAWORKS_AWS_ACCESS_KEY
  secret_key: env:DELTAWORKS_AWS_SECRET_KEY
messaging: {}
"""
COLLECTOR = """\
collector: edge
spool: {max_bytes: SPOOL_BYTES, segment_bytes: 256KiB, segment_seconds: 1, min_free_percent: 0}
limits: {flush_seconds: 20}
sources:
  shop:
    pipeline: shop
    keys: [{sha256: "DIGEST"}]
    sink: {kind: landing, bucket: landing, prefix: shop/, close_bytes: CLOSE_BYTES, close_seconds: 0.5}
"""


class CollectorHarness:
    """A project with a collector that can be started and stopped repeatedly. Not thread-safe, except for `post`."""

    def __init__(self, root: Path, proxy: FaultProxy, client: Any) -> None:
        self.root, self.proxy, self.client = root, proxy, client
        self.spool, self.log = root / "spool", root / "collector.log"
        self.url = self.metrics_url = ""
        self.process: subprocess.Popen[str] | None = None
        self.acknowledged: set[str] = set()
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sent = 0

    def start(self, *, off: str = "") -> None:
        """Starts a process on its predecessor's files."""
        program = ["tests.faults.harness.personal_protections", off] if off else ["deltaworks.cli"]
        command = [sys.executable, "-m", *program, "collect", "edge", "--spool", str(self.spool)]
        command += ["--host", "127.0.0.1", "--port", "0", "--metrics-port", "0", "--drain-seconds", "0"]
        variables = self.environment()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--heartbeat-seconds", "1"],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.root,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("COLLECTOR_LISTENING "):
                ports = json.loads(line.partition(" ")[2])
                break
        else:
            raise AssertionError(f"the collector ended with {self.process.wait()}: {self.log.read_text()[-2_000:]}")
        self.url = f"http://127.0.0.1:{ports['port']}"
        self.metrics_url = f"http://127.0.0.1:{ports['metrics_port']}/metrics"

    def environment(self) -> dict[str, str]:
        """Returns the environment variables for programs of this project."""
        own = {
            "DELTAWORKS_PROJECT": str(self.root),
            "DELTAWORKS_HOME": str(self.root / "home"),
            "DELTAWORKS_ENVIRONMENT": "local",
            "DELTAWORKS_AWS_ENDPOINT": self.proxy.endpoint,
            "DELTAWORKS_AWS_ACCESS_KEY": "test",
            "DELTAWORKS_AWS_SECRET_KEY": "test",
            "PYTHONUNBUFFERED": "1",
        }
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DELTAWORKS_")} | own
        variables["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])])
        return variables

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends the process; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=90)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    def post(self, count: int = 20, *, size: int = 100) -> str:
        """Posts a batch of new events once; returns the error code, empty if they were acknowledged."""
        with self._lock:
            ids = [f"e{self._sent + number}" for number in range(count)]
            self._sent += count
        lines = "\n".join(json.dumps({"name": "order", "event_id": each, "pad": "x" * size}) for each in ids)
        try:
            answer = httpx2.post(
                f"{self.url}/v1/events",
                content=lines,
                headers={"content-type": "application/x-ndjson"},
                auth=(KEY, ""),
                timeout=30,
            )
        except httpx2.TransportError:
            code = "cut"
        else:
            code = "" if answer.status_code == 200 else str(answer.json()["code"])
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
        with self._lock:
            if code:
                self.refused[code] += 1
            else:
                self.acknowledged |= set(ids)
        return code

    @contextmanager
    def load(self, threads: int = 3, *, size: int = 100) -> Iterator[None]:
        """Posts continuously from several threads; a rejected sender waits a moment."""
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                if self.post(size=size):
                    ended.wait(0.05)

        senders = [threading.Thread(target=send) for _ in range(threads)]
        for sender in senders:
            sender.start()
        try:
            yield
        finally:
            ended.set()
            for sender in senders:
                sender.join()

    def landed_events(self) -> list[dict[str, Any]]:
        """Returns every event of every object version."""
        events = []
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=BUCKET):
            for item in page.get("Versions", []):
                body = self.client.get_object(Bucket=BUCKET, Key=item["Key"], VersionId=item["VersionId"])["Body"]
                events += [json.loads(line) for line in gzip.decompress(body.read()).splitlines()]
        return events

    def check_landed(self) -> None:
        """Checks that every acknowledged event landed once, no unsent event landed, and no number repeats."""
        landed = Counter(event["event_id"] for event in self.landed_events())
        numbers = Counter(
            (event["_collector"]["collector"], event["_collector"]["seq"]) for event in self.landed_events()
        )
        assert self.acknowledged
        assert not (self.acknowledged - landed.keys()), "acknowledged events are lost"
        assert not [event for event, times in landed.items() if times > 1], "events landed twice"
        assert not [number for number, times in numbers.items() if times > 1], "a number was given twice"
        for process in {process for process, _ in numbers}:
            seqs = sorted(seq for owner, seq in numbers if owner == process)
            assert seqs == list(range(1, len(seqs) + 1)), "numbers have gaps"

    def wait_until_delivered(self) -> None:
        """Waits until the collector's progress shows that its disk is drained."""
        eventually(lambda: self.heartbeat().get("oldest_at") is None and self._all_landed(), "the spool is delivered")

    def heartbeat(self) -> dict[str, Any]:
        """Returns the latest heartbeat."""
        files = sorted((self.root / "lake").glob("control/collectors/edge/*/heartbeat.json"))
        return dict(json.loads(files[0].read_bytes())) if files else {}

    def _all_landed(self) -> bool:
        delivered = self.heartbeat()["sources"]["shop"]["delivered"]
        return bool(delivered >= len(self.acknowledged))

    def sink_metric(self, name: str) -> float:
        """Returns a sink metric as Prometheus reads it."""
        start = f'deltaworks_collector_sink_{name}{{source="shop"}} '
        lines = httpx2.get(self.metrics_url, timeout=30).text.splitlines()
        return next(float(line.removeprefix(start)) for line in lines if line.startswith(start))

    def memory_bytes(self) -> int:
        """Returns the process's resident memory."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def collector_harness(
    root: Path, *, spool_bytes: str = "1GiB", close_bytes: str = "64KiB"
) -> Iterator[CollectorHarness]:
    """Makes a harness with a versioned bucket; its collector is not started yet."""
    environment = ENVIRONMENT.replace("LAKE", str(root / "lake"))
    write_project(root, environment=environment, pipeline=PIPELINE)
    declared = COLLECTOR.replace("SPOOL_BYTES", spool_bytes).replace("CLOSE_BYTES", close_bytes)
    (root / "include" / "collectors").mkdir(parents=True)
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (root / "include" / "collectors" / "edge.yaml").write_text(declared.replace("DIGEST", digest))
    with running_moto() as endpoint, running_fault_proxy(endpoint) as proxy:
        # Servers of one process share their objects.
        httpx2.post(f"{endpoint}/moto-api/reset").raise_for_status()
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        stage = CollectorHarness(root, proxy, client)
        try:
            yield stage
        finally:
            if stage.process is not None:
                stage.end(signal.SIGKILL)
