"""Kills a collector and makes its bucket unreachable, slow and refusing: acknowledged events land exactly once.

DELTAWORKS_OUTAGE_SECONDS=1200 makes the bucket unavailable for twenty minutes.
"""

from __future__ import annotations

import datetime as dt
import gzip
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from deltalake import write_deltalake

from deltaworks.airflow.health_alerts import alert_on_verdicts
from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.health.processes import process_reports
from deltaworks.control.objects import LocalObjects
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.maintenance.lost_events import find_lost_events
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_pipeline, declare_table, write_files
from sandbox.servers.fault_proxy import Action, Fault
from tests.faults.harness.collector_harness import BUCKET, KEY, CollectorHarness, collector_harness
from tests.faults.harness.collector_lake import COLUMNS, EVENT
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


PIPELINE = declare_pipeline(declare_table("events", *COLUMNS), event=EVENT)


class Lake:
    """The collector's lake: landed events by the stream's parser, and the alerts raised."""

    def __init__(self, harness: CollectorHarness) -> None:
        self.stage = harness
        self.root = harness.root / "lake"
        self.objects = LocalObjects(self.root)
        write_files(harness.root / "include/pipelines/shop", {"pipeline.yaml": PIPELINE})
        self._read: set[str] = set()

    @property
    def catalog(self) -> Catalog:
        return load_catalog(root=self.stage.root)

    def keys(self) -> list[str]:
        """Returns the objects in the bucket, in order."""
        pages = self.stage.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def read(self) -> None:
        """Lands new objects of the bucket."""
        spec = self.catalog.pipeline("shop")
        waiting = [key for key in self.keys() if key not in self._read]
        payloads = [Payload(number, key, self._lines(key)) for number, key in enumerate(waiting, len(self._read) + 1)]
        for name, rows in Parser(spec).parse(payloads, BatchMetadata(1, 1_700_000_000_000_000, "")):
            write_deltalake(str(self.root / paths.table("shop", name)), rows, mode="append")
        self._read |= set(waiting)

    def _lines(self, key: str) -> bytes:
        return gzip.decompress(self.stage.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def alerted_subjects(self, *, looked: bool = True) -> set[str]:
        """Returns the subjects of open alerts two hours later, after the hourly gap check and the health check."""
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=2, minutes=10)
        if looked:
            find_lost_events(self.catalog, self.objects, "edge", now=later)
        # The health check runs with the current time: two hours later the collector itself would count as silent.
        verdicts = [report.verdict for report in process_reports(self.catalog, self.objects)]
        alert_on_verdicts(self.objects, verdicts, now=later)
        return set(open_subjects(self.objects, "EVENTS_LOST"))


def _delivered(harness: CollectorHarness) -> int:
    """Returns the number of delivered events in the newest heartbeat that has no event waiting."""
    heartbeat = harness.heartbeat()
    waits = heartbeat.get("oldest_at") is not None
    return 0 if waits else sum(source["delivered"] for source in heartbeat.get("sources", {}).values())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A collector that has landed some objects, including an event that is not JSON."""
    with collector_harness(tmp_path, close_bytes="4KiB") as harness:
        lake = Lake(harness)
        harness.start()
        with harness.load():
            eventually(lambda: len(harness.acknowledged) > 400, "it takes events")
        answer = httpx2.post(f"{harness.url}/v1/events", content=b'{"name": "ord', auth=(KEY, ""), timeout=30)
        assert answer.json()["kept"] == 1
        harness.post()
        # A heartbeat from before the load also has no oldest event: the count tells them apart.
        eventually(lambda: _delivered(harness) >= len(harness.acknowledged), "all of it lands")
        assert len(lake.keys()) > 3
        yield lake


def test_lost_events_are_reported_by_their_numbers(lake: Lake) -> None:
    vanished = lake.keys()[1]
    first, last = (int(part) for part in Path(vanished).name.split(".")[0].split("-")[-2:])
    body = lake._lines(vanished)
    lake.stage.client.delete_object(Bucket=BUCKET, Key=vanished)
    lake.read()

    assert lake.alerted_subjects() == {"collector edge"}
    (missing,) = find_lost_events(
        lake.catalog, lake.objects, "edge", now=dt.datetime.now(dt.UTC) + dt.timedelta(hours=3)
    ).missing
    assert (missing.first, missing.last) == (first, last)

    lake.stage.client.put_object(Bucket=BUCKET, Key=vanished, Body=gzip.compress(body))
    lake.read()
    assert lake.alerted_subjects() == set(), "what is back is lost no more"


def test_landed_and_quarantined_events_are_not_reported(lake: Lake) -> None:
    lake.read()
    assert lake.alerted_subjects() == set()


def test_without_the_gap_check_a_loss_is_not_reported(lake: Lake) -> None:
    lake.stage.client.delete_object(Bucket=BUCKET, Key=lake.keys()[1])
    lake.read()
    assert lake.alerted_subjects(looked=False) == set()
