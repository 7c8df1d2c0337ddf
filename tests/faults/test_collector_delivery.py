"""A collector is killed, its bucket is cut off, slow and refusing: what it acknowledged lands, and lands once.

DELTAWORKS_OUTAGE_SECONDS=1200 has the bucket away for twenty minutes.
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
#: Beyond what Python takes for itself: of an outage nothing may gather in memory.
MEMORY_BYTES = 64 << 20
AWAY = Fault(action=Action.UNAVAILABLE, method="PUT")
LOST = Fault(action=Action.LOSE_REPLY, method="PUT", every=2)
REFUSED = Fault(action=Action.UNAVAILABLE, method="PUT", every=2)
SLOW = Fault(action=Action.DELAY, method="PUT", delay_seconds=0.3)


def test_each_event_lands_once_despite_kills_and_bucket_errors(tmp_path: Path) -> None:
    chance = random.Random(7)
    with collector_harness(tmp_path) as stage:
        for faults in ([LOST], [REFUSED], [SLOW], [LOST, SLOW]):
            stage.proxy.faults = faults
            stage.start()
            with stage.load():
                before = len(stage.proxy.incidents)
                eventually(lambda before=before: len(stage.proxy.incidents) > before, "a put meets its fault")
                time.sleep(chance.uniform(0.0, 1.0))
                stage.end(signal.SIGKILL)
        stage.proxy.faults = ()
        stage.start()
        stage.post()
        eventually(lambda: not stage.post(), "it takes events")
        stage.wait_until_delivered()
        assert stage.end() == 0
        assert any(incident.is_lost_reply for incident in stage.proxy.incidents), "no reply was lost"
        stage.check_landed()


@pytest.mark.timeout(OUTAGE_SECONDS * 2 + 600)
def test_events_are_accepted_without_memory_growth_while_the_bucket_is_unavailable(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        with stage.load():
            eventually(lambda: len(stage.acknowledged) > 500, "it takes events")
        before = stage.memory_bytes()
        stage.proxy.faults = [AWAY]
        taken = len(stage.acknowledged)
        with stage.load():
            time.sleep(OUTAGE_SECONDS)
        assert not stage.refused, "senders were turned away though the spool had room"
        assert len(stage.acknowledged) > taken
        assert stage.memory_bytes() - before < MEMORY_BYTES
        trouble = stage.heartbeat()["sources"]["shop"]["trouble"]
        assert "SlowDown" in trouble or "503" in trouble
        assert stage.sink_metric("errors_total") > 0
        assert stage.sink_metric("waiting_bytes") > 100 * (len(stage.acknowledged) - taken), "less than came meanwhile"
        stage.proxy.faults = ()
        stage.wait_until_delivered()
        assert stage.sink_metric("waiting_bytes") == 0
        assert stage.end() == 0
        stage.check_landed()


def test_a_full_spool_rejects_senders_until_the_bucket_recovers(tmp_path: Path) -> None:
    with collector_harness(tmp_path, spool_bytes="2MiB") as stage:
        stage.start()
        stage.proxy.faults = [AWAY]
        eventually(lambda: stage.post(400, size=1_000) == "spool_full", "the spool is full")
        stage.proxy.faults = ()
        eventually(lambda: not stage.post(), "it takes events again")
        stage.wait_until_delivered()
        assert stage.end() == 0
        stage.check_landed()


def test_a_bucket_slower_than_the_input_delays_senders_and_loses_no_event(tmp_path: Path) -> None:
    with collector_harness(tmp_path, spool_bytes="4MiB") as stage:
        stage.proxy.faults = [Fault(action=Action.DELAY, method="PUT", delay_seconds=0.5)]
        stage.start()
        with stage.load(threads=4, size=2_000):
            eventually(lambda: bool(stage.refused["spool_full"]), "more comes in than the bucket takes")
            taken = len(stage.acknowledged)
            eventually(lambda: len(stage.acknowledged) > taken, "what the bucket frees is used")
        stage.proxy.faults = ()
        stage.wait_until_delivered()
        assert stage.end() == 0
        stage.check_landed()


def test_a_stop_in_a_burst_delivers_what_was_acknowledged(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.start()
        with stage.load():
            eventually(lambda: len(stage.acknowledged) > 500, "it takes events")
            assert stage.end() == 0
        stage.check_landed()
        assert not list((stage.spool / "w0").glob("*.damaged"))


def test_an_orphaned_folder_is_drained_by_another_process(tmp_path: Path) -> None:
    with collector_harness(tmp_path) as stage:
        stage.proxy.faults = [AWAY]
        stage.start()
        with stage.load():
            eventually(lambda: len(stage.acknowledged) > 100, "it takes events")
        stage.end(signal.SIGKILL)
        # The process that had it is gone for good: another one has its place.
        (stage.spool / "w0").rename(stage.spool / "w1")
        stage.proxy.faults = ()
        stage.start()
        stage.post()
        beats = stage.root / "lake" / "control" / "collectors" / "edge"
        eventually(lambda: len(stage.landed_events()) >= len(stage.acknowledged), "both folders are delivered")
        assert stage.end() == 0
        assert len(list(beats.glob("*/heartbeat.json"))) == 2
        stage.check_landed()
