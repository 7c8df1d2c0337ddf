"""Kills a collector and makes its bucket unreachable, slow and refusing: acknowledged events land exactly once.

DELTAWORKS_OUTAGE_SECONDS=1200 makes the bucket unavailable for twenty minutes.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from sandbox.servers.fault_proxy import Action, Fault
from tests.faults.harness.collector_harness import collector_harness
from tests.waiting import eventually

pytestmark = pytest.mark.faults
OUTAGE_SECONDS = float(os.environ.get("DELTAWORKS_OUTAGE_SECONDS", "20"))
#: Above Python's own use: nothing may accumulate in memory during an outage.
MEMORY_BYTES = 64 << 20
AWAY = Fault(action=Action.UNAVAILABLE, method="PUT")
LOST = Fault(action=Action.LOSE_REPLY, method="PUT", every=2)
REFUSED = Fault(action=Action.UNAVAILABLE, method="PUT", every=2)
SLOW = Fault(action=Action.DELAY, method="PUT", delay_seconds=0.3)


def test_each_event_lands_once_despite_kills_and_bucket_errors(tmp_path: Path) -> None:
    chance = random.Random(7)
    with collector_harness(tmp_path) as harness:
        for faults in ([LOST], [REFUSED], [SLOW], [LOST, SLOW]):
            harness.proxy.faults = faults
            harness.start()
            with harness.load():
                before = len(harness.proxy.incidents)
                eventually(lambda before=before: len(harness.proxy.incidents) > before, "a put meets its fault")
                time.sleep(chance.uniform(0.0, 1.0))
                harness.end(signal.SIGKILL)
        harness.proxy.faults = ()
        harness.start()
        harness.post()
        eventually(lambda: not harness.post(), "it takes events")
        harness.wait_until_delivered()
        assert harness.end() == 0
        assert any(incident.is_lost_reply for incident in harness.proxy.incidents), "no reply was lost"
        harness.check_landed()


@pytest.mark.timeout(OUTAGE_SECONDS * 2 + 600)
def test_events_are_accepted_without_memory_growth_while_the_bucket_is_unavailable(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as harness:
        harness.start()
        with harness.load():
            eventually(lambda: len(harness.acknowledged) > 500, "it takes events")
        before = harness.memory_bytes()
        harness.proxy.faults = [AWAY]
        taken = len(harness.acknowledged)
        with harness.load():
            time.sleep(OUTAGE_SECONDS)
        assert not harness.refused, "senders were turned away though the spool had room"
        assert len(harness.acknowledged) > taken
        assert harness.memory_bytes() - before < MEMORY_BYTES
        trouble = harness.heartbeat()["sources"]["shop"]["trouble"]
        assert "SlowDown" in trouble or "503" in trouble
        assert harness.sink_metric("errors_total") > 0
        assert harness.sink_metric("waiting_bytes") > 100 * (len(harness.acknowledged) - taken), (
            "less than came meanwhile"
        )
        harness.proxy.faults = ()
        harness.wait_until_delivered()
        assert harness.sink_metric("waiting_bytes") == 0
        assert harness.end() == 0
        harness.check_landed()


def test_a_full_spool_rejects_senders_until_the_bucket_recovers(tmp_path: Path) -> None:
    with collector_harness(tmp_path, spool_bytes="2MiB") as harness:
        harness.start()
        harness.proxy.faults = [AWAY]
        eventually(lambda: harness.post(400, size=1_000) == "spool_full", "the spool is full")
        harness.proxy.faults = ()
        eventually(lambda: not harness.post(), "it takes events again")
        harness.wait_until_delivered()
        assert harness.end() == 0
        harness.check_landed()


def test_a_bucket_slower_than_the_input_delays_senders_and_loses_no_event(tmp_path: Path) -> None:
    with collector_harness(tmp_path, spool_bytes="4MiB") as harness:
        harness.proxy.faults = [Fault(action=Action.DELAY, method="PUT", delay_seconds=0.5)]
        harness.start()
        with harness.load(threads=4, size=2_000):
            eventually(lambda: bool(harness.refused["spool_full"]), "more comes in than the bucket takes")
            taken = len(harness.acknowledged)
            eventually(lambda: len(harness.acknowledged) > taken, "what the bucket frees is used")
        harness.proxy.faults = ()
        harness.wait_until_delivered()
        assert harness.end() == 0
        harness.check_landed()


def test_a_stop_in_a_burst_delivers_what_was_acknowledged(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as harness:
        harness.start()
        with harness.load():
            eventually(lambda: len(harness.acknowledged) > 500, "it takes events")
            assert harness.end() == 0
        harness.check_landed()
        assert not list((harness.spool / "w0").glob("*.damaged"))


def test_an_orphaned_folder_is_drained_by_another_process(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as harness:
        harness.proxy.faults = [AWAY]
        harness.start()
        with harness.load():
            eventually(lambda: len(harness.acknowledged) > 100, "it takes events")
        harness.end(signal.SIGKILL)
        # The former process is gone for good, and another one runs in its place.
        (harness.spool / "w0").rename(harness.spool / "w1")
        harness.proxy.faults = ()
        harness.start()
        harness.post()
        beats = harness.root / "lake" / "control" / "collectors" / "edge"
        eventually(lambda: len(harness.landed_events()) >= len(harness.acknowledged), "both folders are delivered")
        assert harness.end() == 0
        assert len(list(beats.glob("*/heartbeat.json"))) == 2
        harness.check_landed()
