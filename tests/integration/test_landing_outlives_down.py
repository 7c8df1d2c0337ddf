"""Landed objects survive a stop of the stack: nothing is lost or doubled, and they can be read again."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from sandbox.demo.landing_sink import landing_sink
from sandbox.stack.environment import process_environment
from sandbox.stack.processes import stack_processes
from sandbox.stack.shutdown import StopFlags
from sandbox.stack.stack import down, up
from tests.integration.airflow_harness import BACK_SECONDS, AirflowHarness, running_harness, wait
from tests.processes import run_process

OBJECTS, EVENTS = 3, 10


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("stage")) as harness:
        yield harness


@pytest.mark.timeout(1800)
def test_what_landed_unread_before_a_stop_is_read_once_after_the_start(harness: AirflowHarness) -> None:
    harness.await_progress(0)
    sent, *_ = harness.settle()
    relay = StopFlags.load(harness.home).relays["landing"]
    relay.set(by="a test", reason="so that nobody reads what lands now")
    wait(lambda: "relay" not in _kinds(harness), "the relay has not ended", BACK_SECONDS)
    put = landing_sink(harness.catalog.environment.landing)
    for first in range(sent, sent + OBJECTS * EVENTS, EVENTS):
        lines = (json.dumps({"number": first + i, "at": 1_700_000_000 + first + i}) for i in range(EVENTS))
        put(f"clicks/2023/11/14/22/{first:08d}.json", "\n".join(lines).encode())

    down(home=harness.home)
    up(home=harness.home)
    relay.clear()

    owed = Counter(range(sent + OBJECTS * EVENTS))
    wait(lambda: len(harness.rows()) >= owed.total(), "what landed before the stop does not arrive", BACK_SECONDS)
    assert Counter(harness.rows()) == owed


@pytest.mark.timeout(900)
def test_what_landed_before_a_stop_can_be_reprocessed_after_the_start(harness: AirflowHarness) -> None:
    before = Counter(harness.rows())
    command = [sys.executable, "-m", "deltaworks.cli", "reprocess", "clicks", "--from-start", "--no-dry-run"]

    done = run_process(command, env=process_environment(harness.home), timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(before) // EVENTS} objects" in done.stdout
    assert Counter(harness.rows()) == before


def _kinds(harness: AirflowHarness) -> set[str]:
    return {process.kind for process in stack_processes(harness.home)}
