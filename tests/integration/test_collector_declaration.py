"""A running collector takes a new source and key from its changed file, and loses no event meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.faults.harness.collector_harness import CollectorHarness, collector_harness

pytestmark = pytest.mark.integration


def deltaworks(stage: CollectorHarness, *words: str) -> str:
    command = [sys.executable, "-m", "deltaworks.cli", *words]
    return subprocess.run(
        command, env=stage.environment(), cwd=stage.root, check=True, capture_output=True, text=True
    ).stdout


def status(stage: CollectorHarness, key: str) -> int:
    event = {"name": "order", "event_id": f"of {key}"}
    answer = httpx2.post(f"{stage.url}/v1/events", json=event, auth=(key, ""), timeout=30)
    return answer.status_code


def wait_for_start(stage: CollectorHarness) -> None:
    assert stage.process is not None
    assert stage.process.stdout is not None
    for line in stage.process.stdout:
        if line.startswith("COLLECTOR_LISTENING "):
            stage.url = f"http://127.0.0.1:{json.loads(line.partition(' ')[2])['port']}"
            return
    raise AssertionError(stage.log.read_text()[-2_000:])


def test_a_new_source_and_its_key_need_no_restart(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        assert stage.post() == ""
        assert stage.process is not None
        process = stage.process.pid
        declared = tmp_path / "include" / "pipelines" / "shop" / "pipeline.yaml"
        other = tmp_path / "include" / "pipelines" / "clicks" / "pipeline.yaml"
        other.parent.mkdir()
        other.write_text(declared.read_text().replace("pipeline: shop", "pipeline: clicks"))

        file = tmp_path / "include" / "collectors" / "edge.yaml"
        printed = deltaworks(stage, "collector-key", "clicks")
        assert "clicks" not in file.read_text()
        written = deltaworks(stage, "collector-key", "clicks", "--write")
        key = written.splitlines()[0].removeprefix("Key: ")
        assert printed.splitlines()[0] != written.splitlines()[0]
        assert key not in file.read_text()
        wait_for_start(stage)

        assert status(stage, key) == 200
        assert status(stage, "unknown") == 401
        assert stage.process.pid == process
        assert stage.post() == ""
        stage.wait_until_delivered()
        stage.end()


def test_a_declaration_that_is_invalid_changes_nothing(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        file = tmp_path / "include" / "collectors" / "edge.yaml"
        valid = file.read_text()

        file.write_text(valid.replace("sources:", "sauces:"))
        for _ in range(30):
            assert stage.post() == ""
            httpx2.get(stage.metrics_url, timeout=30).raise_for_status()
        file.write_text(valid)

        assert stage.end() == 0
