"""The relay as the process Airflow launches: exit codes, last line, end, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.testing import write_project
from tests.unit.sources.objects.relay.relay_harness import drain, keys
from tests.waiting import eventually

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).resolve().parents[3]
ENVIRONMENT = """
environment: local
lake: {{root: "{lake}"}}
landing: {{root: "s3://{bucket}"}}
messaging:
  endpoint: "{endpoint}"
  access_key: env:DELTAWORKS_AWS_ACCESS_KEY
  secret_key: env:DELTAWORKS_AWS_SECRET_KEY
"""
RELAY = """
relay: landing
queue_url: "{queue_url}"
buckets: [{bucket}]
append_seconds: 0.2
lease_ttl_seconds: 3
max_run_seconds: {max_run_seconds}
"""

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(landing: Any, tmp_path: Path) -> Iterator[Launch]:
    """Starts relay processes of a project declared for this test; ends the remaining ones."""
    started: list[subprocess.Popen[str]] = []

    def start(relay: str = "landing", *, max_run_seconds: int = 60, **changes: Any) -> subprocess.Popen[str]:
        facts = {**vars(landing), "lake": landing.lake.root, "max_run_seconds": max_run_seconds, **changes}
        write_project(tmp_path, environment=ENVIRONMENT.format(**facts), relays=[RELAY.format(**facts)])
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / "include"),
            "DELTAWORKS_PROJECT": str(tmp_path),
            "DELTAWORKS_ENVIRONMENT": "local",
            "DELTAWORKS_RUN": "landing__relay/run/relay/1",
        }
        command = [sys.executable, "-m", "deltaworks.sources.objects.relay", "--relay", relay]
        process = subprocess.Popen(
            [*command, "--early-failure-wait-seconds", "0"],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns exit code and last line of output."""
    out, err = process.communicate(timeout=40)
    lines = out.strip().splitlines()
    assert lines, err
    return process.returncode, lines[-1]


def test_a_relay_process_runs_until_its_run_limit(landing: Any, launch: Launch) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(20)))
    code, last = ended(launch(max_run_seconds=10))
    assert code == 0
    assert json.loads(last.removeprefix("DELTAWORKS_RELAY "))["events"] == 20
    assert len(keys(landing)) == 20
    assert drain(landing)


def test_sigterm_ends_a_relay_process_cleanly_and_releases_its_lease(landing: Any, launch: Launch) -> None:
    landing.send(landing.notification("games/1"))
    process = launch()
    eventually(lambda: drain(landing) and keys(landing) == ["games/1"], "it works")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    lease = Lease(open_objects(landing.lake), relay_control("landing", "lease.json"), ttl_seconds=60, name="landing")
    assert lease.acquire(wait_seconds=0) == 2
    lease.release()


def test_kill_9_at_any_time_neither_loses_nor_duplicates_events(landing: Any, launch: Launch) -> None:
    """The rounds are killed once the log shows progress, so somewhere between receipt, append and delete."""
    landing.returns_after(1)
    names = [f"games/{number}" for number in range(300)]
    landing.send(*(landing.notification(name) for name in names))
    for round_number in range(2):
        process = launch()
        before = len(keys(landing))
        eventually(lambda before=before: len(keys(landing)) > before, f"progress in round {round_number}")
        process.kill()
        process.communicate()
        landing.send(*(landing.notification(name) for name in names[:50]))
    launch()
    eventually(lambda: drain(landing) and len(keys(landing)) >= 300, "everything is in the log")
    assert sorted(keys(landing)) == sorted(names)


def test_a_wrong_name_is_a_config_error_without_retry(launch: Launch) -> None:
    code, last = ended(launch("landign"))
    error = json.loads(last.removeprefix("DELTAWORKS_ERROR "))
    assert (code, error["condition"], error["retryable"]) == (10, "RELAY_UNKNOWN", False)
    assert "landing" in error["hint"]


def test_a_missing_queue_is_a_config_error_without_retry(landing: Any, launch: Launch) -> None:
    code, last = ended(launch(queue_url=landing.queue_url + "-missing"))
    assert (code, json.loads(last.removeprefix("DELTAWORKS_ERROR "))["condition"]) == (10, "QUEUE_REFUSED")
