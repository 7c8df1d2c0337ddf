"""Objects of a collector vanish before a stream reads them: an hour later an alert names the lost event numbers."""

from __future__ import annotations

import datetime as dt
import gzip
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
from tests.faults.harness.collector_harness import BUCKET, KEY, CollectorHarness, collector_harness
from tests.faults.harness.collector_lake import COLUMNS, EVENT
from tests.waiting import eventually

pytestmark = pytest.mark.faults
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
