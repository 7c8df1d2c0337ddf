"""A real Prometheus scrapes `deltaworks metrics`, and answers every expression of the Grafana dashboard."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.metrics.grafana import dashboard, expressions
from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.stack.ports import HOST
from tests.heartbeats import put_heartbeat
from tests.unit.specs.conftest import ENVIRONMENT, write_project
from tests.waiting import eventually

pytestmark = [
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no prometheus on the PATH: apt-get install prometheus"
    ),
]
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: deltaworks, static_configs: [{{targets: ["{target}"]}}]}}
"""
Query = Callable[[str], list[Any]]


def free_port() -> int:
    """Returns an unused port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process inside the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


@pytest.fixture
def lake(tmp_path: Path) -> LocalObjects:
    """A lake with the heartbeats of a lagging stream and a relay."""
    objects = LocalObjects(tmp_path / "lake")
    for folder, name, more in (
        (paths.pipeline_control("shop"), "shop", {"rows": 1200, "backlog_records": 90}),
        (paths.relay_control("landing"), "landing", {"rows": 5, "dead_letters": 3, "backlog_files": 2}),
    ):
        put_heartbeat(objects, folder, name, oldest_pending_at="2026-01-01T00:00:00+00:00", **more)
    return objects


@pytest.fixture
def exporter(tmp_path: Path, lake: LocalObjects) -> Iterator[str]:
    """The address of `deltaworks metrics` over that lake."""
    environment = ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake")
    settings = {"DELTAWORKS_PROJECT": str(write_project(tmp_path, environment=environment))}
    port = free_port()
    variables = os.environ | settings | {"DELTAWORKS_ENVIRONMENT": "local", "DELTAWORKS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "deltaworks.cli", "metrics", "--port", str(port)]
    with running(command, tmp_path / "metrics.log", env=variables, cwd=PROJECT_ROOT / "include"):
        yield f"{HOST}:{port}"


@pytest.fixture
def query(tmp_path: Path, exporter: str) -> Iterator[Query]:
    """Queries a Prometheus that scrapes the exporter each second."""
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(target=exporter))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/tsdb",
        f"--web.listen-address={HOST}:{port}",
    ]
    with running(command, tmp_path / "prometheus.log"), httpx2.Client(base_url=f"http://{HOST}:{port}") as client:

        def ask(expression: str) -> list[Any]:
            try:
                answer = client.get("/api/v1/query", params={"query": expression})
            except httpx2.TransportError:
                return []
            assert answer.status_code in (200, 503), (expression, answer.text)
            return list(answer.json()["data"]["result"]) if answer.is_success else []

        yield ask


def test_prometheus_scrapes_what_is_declared_and_answers_the_dashboard(query: Query) -> None:
    eventually(lambda: query("deltaworks_storage_up == 1"), "the exporter is scraped")

    (rows,) = query("deltaworks_stream_rows_total")
    assert (rows["metric"]["pipeline"], rows["value"][1]) == ("shop", "1200")
    (lag,) = query("deltaworks_stream_lag_seconds")
    assert float(lag["value"][1]) > 86_400
    (dead,) = query("deltaworks_relay_dead_letters")
    assert (dead["metric"]["relay"], dead["value"][1]) == ("landing", "3")
    assert query("up{job='deltaworks'}")[0]["value"][1] == "1"
    for expression in expressions(dashboard()):
        # A wrong expression is a status of 400 or 422, which fails in `ask`.
        query(expression.replace("$pipeline", ".*"))
    assert query('rate(deltaworks_stream_rows_total{pipeline=~".*"}[5m]) or vector(0)')
