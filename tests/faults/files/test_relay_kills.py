"""Relays killed with SIGKILL while a reply is outstanding: of the log commit, or of the message deletion after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_project
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy
from tests.faults.files.conftest import Tell
from tests.faults.harness import relay_entry
from tests.faults.harness.file_log_verdict import proxied_landing
from tests.unit.sources.objects.relay.relay_harness import keys
from tests.waiting import eventually

NAMES = [f"games/{number}" for number in range(80)]
Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(landing: Any, proxy: FaultProxy, tmp_path: Path) -> Iterator[Launch]:
    """Starts relay processes of a project whose queue and lake are behind the proxy; ends the remaining ones."""
    started: list[subprocess.Popen[bytes]] = []
    hit = proxied_landing(landing, proxy)
    bucket = landing.bucket + "-lake"
    landing.s3.create_bucket(Bucket=bucket)
    reached = hit.messaging.model_dump(mode="json", exclude_none=True)
    environment = {
        "lake": {"root": f"s3://{bucket}/lake", "path_style": True} | reached,
        "landing": {"root": f"s3://{landing.bucket}", "path_style": True} | reached,
        "messaging": reached,
    }
    relay = {
        "relay": "landing",
        "queue_url": hit.queue_url,
        "buckets": [landing.bucket],
        "append_seconds": 0.2,
        "max_events_per_append": 20,
        "lease_ttl_seconds": 3,
        "max_run_seconds": 60,
    }
    write_project(tmp_path, environment=environment, relays=[relay])
    landing.lake = landing.storage.of_bucket(bucket).model_copy(update={"root": f"s3://{bucket}/lake"})

    def start(*, off: str = "") -> subprocess.Popen[bytes]:
        known = {
            "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)]),
            "DELTAWORKS_PROJECT": str(tmp_path),
            "DELTAWORKS_ENVIRONMENT": "local",
            relay_entry.OFF: off,
        }
        words = [sys.executable, "-m", "tests.faults.harness.relay_entry", "--relay", "landing"]
        with (tmp_path / f"relay-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(words, env={**os.environ, **known}, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(20)


@pytest.mark.parametrize("without", ["", "identity"], ids=["protected", "without"])
def test_25_killed_between_commit_and_deletion(
    landing: Any, proxy: FaultProxy, launch: Launch, report_files_fault: Tell, without: str
) -> None:
    landing.returns_after(4)
    landing.send(*(landing.notification(name) for name in NAMES))
    proxy.faults = [Fault(action=Action.DELAY, operation="DeleteMessageBatch", delay_seconds=600)]
    first = launch(off=without)
    eventually(lambda: bool(keys(landing)), "an append is in the log, and its messages are not deleted")
    first.kill()
    first.wait(20)
    committed = len(keys(landing))
    proxy.faults = []
    launch(off=without)
    eventually(lambda: landing.waiting() == (0, 0), "the messages came again and are gone")
    note = f"in the log when it was killed: {committed}"
    verdict = report_files_fault("25 killed before the deletion", NAMES, off=without, note=note)
    assert verdict.is_exact == (not without)
    assert verdict.doubled.total() == (committed if without else 0)


@pytest.mark.parametrize("without", ["", "append_first"], ids=["protected", "without"])
def test_25_killed_while_the_commit_is_on_its_way(
    landing: Any, proxy: FaultProxy, launch: Launch, report_files_fault: Tell, without: str
) -> None:
    """The commit arrives seconds after its process was killed, when the successor already runs."""
    landing.returns_after(4)
    landing.send(*(landing.notification(name) for name in NAMES))
    commits = r"file_events/_delta_log/0+[2-9]\d*\.json"
    proxy.faults = [Fault(action=Action.DELAY, method="PUT", path=commits, delay_seconds=20, times=1)]
    first = launch(off=without)
    eventually(lambda: bool(proxy.incidents), "a commit is on its way")
    first.kill()
    first.wait(20)
    launch()
    eventually(lambda: landing.waiting() == (0, 0) and bool(keys(landing)), "the messages came again and are gone")
    verdict = report_files_fault("25 killed during the commit", NAMES, off=without)
    assert verdict.is_exact == (not without)
    assert bool(verdict.lost) == bool(without)
