"""The SDKs of Segment and RudderStack from PyPI, against a collector that is killed while they send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.servers.object_store import free_port
from tests.collector_process import KEY, CollectorProcess, declaration
from tests.http_server import http_server
from tests.processes import run_process

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent / "sdks"
EVENTS = 2000
SDKS = ("segment", "rudder")


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with the installed SDKs; reinstalled when another version is pinned."""
    folder = Path(os.environ.get("DELTAWORKS_SDKS", PROJECT_ROOT / ".deltaworks" / "sdks"))
    pins = (HERE / "requirements.txt").read_text()
    stamp = folder / "requirements.txt"
    if not stamp.is_file() or stamp.read_text() != pins:
        command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
        done = run_process([*command, "--requirement", str(HERE / "requirements.txt")])
        if done.returncode != 0:
            pytest.skip(f"the SDKs cannot be installed here: {done.stderr[-300:]}")
        stamp.write_text(pins)
    return folder


def sending(sdk: str, url: str, packages: Path, *, events: int = EVENTS, retries: int = 10) -> subprocess.Popen[str]:
    words = [sys.executable, str(HERE / "send.py"), sdk, url, KEY, str(events), str(retries)]
    variables = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables)


@pytest.mark.parametrize("sdk", SDKS)
def test_an_sdk_drops_no_batch_if_the_collector_is_killed_while_it_sends(
    sdk: str, packages: Path, tmp_path: Path
) -> None:
    listen = {"host": "127.0.0.1", "port": free_port(), "metrics_port": 0}
    collector = CollectorProcess(tmp_path, declaration(listen=listen)).start()
    sender = sending(sdk, collector.url, packages)
    time.sleep(1.5)
    collector.kill()
    time.sleep(1)
    collector.start()
    output, _ = sender.communicate(timeout=300)
    collector.terminate()

    events = collector.spooled_events()
    assert json.loads(output) == {"abandoned": 0}
    assert {event["properties"]["n"] for event in events} == set(range(EVENTS))
    assert len({event["_collector"]["id"] for event in events}) == EVENTS, "what came twice has one id"
    assert {event["_collector"]["id_from"] for event in events} == {"client"}


@pytest.mark.parametrize(("status", "abandoned"), [(200, 0), (202, 20), (204, 20)])
def test_an_sdk_drops_a_batch_that_is_answered_with_another_success_than_200(
    status: int, abandoned: int, packages: Path
) -> None:
    with http_server(lambda _: (status, b"")) as url:
        output, _ = sending("rudder", url, packages, events=20, retries=1).communicate(timeout=120)

    assert json.loads(output)["abandoned"] == abandoned
