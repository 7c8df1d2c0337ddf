"""The complete engagement pipeline: broker, stream, mutations and gold, compared with the generator's own replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.engine.runner import IngestRun
from deltaworks.errors import TransientError
from deltaworks.gold.build import rebuild_gold
from deltaworks.mutations.apply import MutationRun
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.record_sources import KafkaSourceSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect
from deltaworks.testing import load_project, table_rows
from generator.engagement import EngagementRecord, engagement_records
from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementLog, EngagementTruth
from sandbox.demo.tokens import get_tokens
from sandbox.demo.topic_sink import topic_sink
from sandbox.servers.kafka_broker import RunningBroker, create_topics, running_broker
from tests.batch_points import call_at_points
from tests.integration.engagement_rows import check_landed, check_mutated
from tests.spark.conftest import spark

__all__ = ["spark"]
PIPELINE = "engagement"
SETTINGS = EngagementSettings(activities=1_200, organisations=8, days=10, seed=11)


@dataclass
class Platform:
    """A project with the shipped pipeline, its broker, and the events sent so far."""

    spark: SparkSession
    catalog: Catalog
    broker: RunningBroker
    log: EngagementLog = field(default_factory=lambda: EngagementLog(SETTINGS))

    def send(self, some: list[EngagementRecord]) -> None:
        with topic_sink(self.broker.address) as send:
            for piece in some:
                send(piece.topic, piece.key, piece.value)
                if piece.event is None:
                    self.log.malformed += 1
                else:
                    self.log.record(piece.event)

    def stream(self, *, crash_at: str = "") -> None:
        """Lands all sent events; the run crashes once at a given point and is restarted."""
        if crash_at:
            crashing = _Crashing(crash_at)
            with call_at_points(crashing), pytest.raises(StreamingQueryException, match="the run breaks off"):
                IngestRun(self.spark, self.catalog, PIPELINE, parts=STREAM_PARTS, available_now=True).run()
            assert crashing.crashed
        IngestRun(self.spark, self.catalog, PIPELINE, parts=STREAM_PARTS, available_now=True).run()

    def mutate(self) -> None:
        MutationRun(lambda: self.spark, self.catalog, PIPELINE, lease_wait_seconds=60).run()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return table_rows(Lake(self.catalog.environment.lake), PIPELINE, table)

    @property
    def truth(self) -> EngagementTruth:
        return self.log.truth().tokenized(get_tokens(self.catalog, PIPELINE))


@dataclass
class _Crashing:
    """Crashes a run at one point."""

    point: str
    crashed: bool = False

    def __call__(self, reached: str) -> None:
        if reached == self.point:
            self.crashed = True
            raise RuntimeError(f"the run breaks off at {reached}")


@pytest.fixture(scope="module")
def platform(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    root = tmp_path_factory.mktemp("engagement")
    with running_broker(root / "kafka") as broker:
        yield Platform(spark, _project(root, broker.address.bootstrap), broker)


def _project(root: Path, bootstrap: str) -> Catalog:
    folder = PROJECT_ROOT / "include" / "pipelines" / PIPELINE
    declared = yaml.safe_load((folder / "pipeline.yaml").read_text())
    declared["source"]["bootstrap_servers"] = bootstrap
    declared["stream"] |= {"lease_ttl_seconds": 3}
    files = {f"pipelines/{PIPELINE}/{path.relative_to(folder)}": path.read_text() for path in folder.glob("*/*.sql")}
    catalog = load_project(root, declared, relays=[], files=files)
    source = catalog.pipeline(PIPELINE).source
    assert isinstance(source, KafkaSourceSpec)
    create_topics(bootstrap, source.topics)
    return catalog


def check_answers(platform: Platform) -> None:
    """Checks gold and the views against the replay, each event counted once."""
    rebuild_gold(platform.spark, platform.catalog, PIPELINE)
    alive = [row for row in platform.truth.rows.to_pylist() if not row["deleted"]]
    names = {(row["org_id"], row["id"]): row["name"] for row in platform.truth.names.to_pylist()}
    per_contact = Counter((row["org_id"], row["contact_id"]) for row in alive)
    per_org = Counter(row["org_id"] for row in alive)
    busiest = {
        (org, place): (contact, names.get((org, contact), contact), count)
        for org in per_org
        for place, (count, contact) in enumerate(
            sorted(((n, c) for (o, c), n in per_contact.items() if o == org), key=lambda each: (-each[0], each[1]))[
                :20
            ],
            1,
        )
    }
    found = {
        (row["org_id"], row["place"]): (row["contact_id"], row["contact_name"], row["activities"])
        for row in platform.rows("top_contacts")
    }
    assert found == busiest
    per_day: Counter[str] = Counter()
    for row in platform.rows("activities_per_day"):
        per_day[row["org_id"]] += row["activities"]
    assert per_day == per_org
    connection, _ = connect(platform.catalog)
    shown = connection.sql(
        "SELECT DISTINCT org_id, contact_id, contact_name FROM engagement.activities_named"
    ).fetchall()
    assert {(org, contact): name for org, contact, name in shown} == {
        key: names.get(key, key[1]) for key in per_contact
    }


def test_what_was_sent_lands_and_ends_as_a_replay_in_order_says(platform: Platform) -> None:
    sent = list(engagement_records(SETTINGS))
    platform.send(sent[: len(sent) // 2])
    platform.stream(crash_at="committed:activities")
    check_landed(platform)
    platform.mutate()
    check_mutated(platform)
    check_answers(platform)

    # Requests about earlier rows, late requests and rows, and rows with renamed ids.
    platform.send(sent[len(sent) // 2 :])
    platform.stream(crash_at="prepared")
    check_landed(platform)
    platform.mutate()
    check_mutated(platform)
    check_answers(platform)
    assert platform.truth.counts()["moved"] > 100
    assert platform.truth.counts()["deleted"] > 15


def test_records_that_a_broker_does_not_take_are_told(platform: Platform) -> None:
    with pytest.raises(TransientError, match="RECORDS_NOT_SENT"), topic_sink(platform.broker.address) as send:
        send("no-such-topic", "key", b"value")


def test_a_mutation_tells_of_the_rows_it_changed(platform: Platform) -> None:
    rows = {row["engagement_id"]: row for row in platform.rows("activities")}
    changed = {key for key, row in rows.items() if row["_mutation"] is not None}

    told_of = {key for row in platform.rows("notifications") if row["batch_kind"] == "mutation" for key in row["keys"]}

    assert changed
    assert changed <= told_of <= set(rows)
