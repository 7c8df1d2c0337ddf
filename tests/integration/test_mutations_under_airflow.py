"""Mutations under Airflow's own processes during a running stream: every row equals a replay of all requests."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.objects import open_objects
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, table_rows
from generator.engagement import EngagementRecord, engagement_records
from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementLog, EngagementTruth
from sandbox.demo.tokens import get_tokens
from sandbox.demo.topic_sink import topic_sink
from sandbox.servers.kafka_broker import BrokerAddress
from sandbox.stack.home import StackHome
from sandbox.stack.stack import status
from tests.integration.airflow_harness import BACK_SECONDS, linked_project, people_of, running_stack, wait
from tests.integration.airflow_people import People
from tests.integration.engagement_rows import check_landed, check_mutated

pytestmark = pytest.mark.timeout(900)
MUTATIONS = dag_id("engagement", "mutations")
SETTINGS = EngagementSettings(activities=1_200, organisations=8, days=10, seed=11)
JOB_SECONDS = 300.0


@dataclass
class Platform:
    """The running pipeline, and the events sent so far."""

    home: StackHome
    catalog: Catalog
    broker: BrokerAddress
    log: EngagementLog = field(default_factory=lambda: EngagementLog(SETTINGS))
    sent: int = 0

    def send(self, some: Sequence[EngagementRecord], *, seconds: float = 0.0) -> None:
        """Sends events in order, evenly over this many seconds."""
        with topic_sink(self.broker) as send:
            for piece in some:
                send(piece.topic, piece.key, piece.value)
                self.sent += 1
                if piece.event is None:
                    self.log.malformed += 1
                else:
                    self.log.record(piece.event)
                time.sleep(seconds / len(some))

    def await_landed(self) -> None:
        """Waits until every sent event is in a table."""

        def landed() -> bool:
            truth = self.truth
            wanted = {"activities": truth.activities, "requests": truth.requests, "quarantine": truth.malformed}
            return all(self.count(table) >= count for table, count in wanted.items())

        wait(landed, f"not all of {self.sent} records have landed", BACK_SECONDS)

    def count(self, table: str) -> int:
        """Returns the number of a table's rows."""
        return len(table_rows(self.lake, "engagement", table, "_batch_id"))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns all rows of a table."""
        return table_rows(self.lake, "engagement", table)

    @property
    def lake(self) -> Lake:
        return Lake(self.catalog.environment.lake)

    @property
    def truth(self) -> EngagementTruth:
        """Returns the expected rows after all sent requests."""
        return self.log.truth().tokenized(get_tokens(self.catalog, "engagement"))

    @property
    def beat(self) -> Heartbeat:
        """Returns the stream's heartbeat."""
        objects = open_objects(self.catalog.environment.lake)
        return present(read_heartbeat(objects, paths.pipeline_control("engagement", "heartbeat.json")))


def _project(folder: Path) -> Path:
    project = linked_project(folder)
    engagement = project / "include" / "pipelines" / "engagement"
    shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / "engagement", engagement)
    declared = yaml.safe_load((engagement / "pipeline.yaml").read_text())
    declared["stream"] |= {"trigger_seconds": 1, "lease_ttl_seconds": 6}
    (engagement / "pipeline.yaml").write_text(yaml.safe_dump(declared))
    return project


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    project = _project(tmp_path_factory.mktemp("project"))
    with running_stack(project, variables={SCHEDULES_VARIABLE: "off"}) as (home, catalog):
        addresses = status(home=home).addresses
        assert addresses is not None
        assert addresses.kafka_bootstrap is not None
        yield Platform(home, catalog, BrokerAddress(addresses.kafka_bootstrap))


@pytest.fixture
def people(platform: Platform) -> Iterator[People]:
    with people_of(platform.home) as people:
        yield people


def test_pending_requests_are_only_counted_by_default(platform: Platform, people: People) -> None:
    sent = list(engagement_records(SETTINGS))
    platform.send(sent[: len(sent) // 2])
    platform.await_landed()

    people.run(MUTATIONS, "counted", {}, seconds=JOB_SECONDS)

    check_landed(platform)
    assert all(row["_mutation"] is None for row in platform.rows("activities"))
    assert platform.truth.counts()["moved"] > 50


def test_requests_are_applied_during_the_stream_and_every_row_equals_a_replay(
    platform: Platform, people: People
) -> None:
    before, rest = platform.beat, list(engagement_records(SETTINGS))[platform.sent :]
    sending = threading.Thread(target=platform.send, args=(rest,), kwargs={"seconds": 90.0})
    sending.start()
    rows, beside = platform.count("activities"), 0
    number = 0
    while sending.is_alive():
        number += 1
        people.run(MUTATIONS, f"beside-{number}", {"dry_run": False}, seconds=JOB_SECONDS)
        # Rows landed during a run; the run has released the table by now.
        beside = max(beside, platform.count("activities") - rows)
    sending.join()
    platform.await_landed()
    people.run(MUTATIONS, "the-rest", {"dry_run": False}, seconds=JOB_SECONDS)

    check_landed(platform)
    check_mutated(platform)
    counts = platform.truth.counts()
    assert counts["moved"] > 100
    assert counts["deleted"] > 15
    assert beside > 0
    assert (platform.beat.pid, platform.beat.epoch) == (before.pid, before.epoch), "the stream was restarted"
    assert psutil.pid_exists(before.pid)


def test_a_second_run_has_no_changes(platform: Platform, people: People) -> None:
    rows = sorted(map(repr, platform.rows("activities")))

    people.run(MUTATIONS, "nothing", {"dry_run": False}, seconds=JOB_SECONDS)

    assert sorted(map(repr, platform.rows("activities"))) == rows
    check_mutated(platform)
