"""A pipeline with mutable tables is rolled back to a batch and ends in the same state as without the rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.runner import IngestRun
from deltaworks.errors import ContractError
from deltaworks.mutations.apply import MutationRun
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.recovery.restore.plan import declared_tables
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.start_over import StartOverResult, start_over
from deltaworks.specs.pipeline import PipelineSpec
from sandbox.servers.kafka_broker import RunningBroker, running_broker
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, TOLD, MutationHarness, declared
from tests.spark.sources.kafka_harness import Topic

pytestmark = pytest.mark.integration
STREAM = {"tasks_per_batch": 1, "lease_ttl_seconds": 3}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class RollbackHarness:
    """Contacts whose activities and requests come through one topic, landed and applied in three batches."""

    def __init__(self, spark: SparkSession, root: Path, topic: Topic) -> None:
        self.spark, self.topic = spark, topic
        plain = declared().model_dump(mode="json") | {"source": topic.source(), "stream": STREAM}
        self.made = MutationHarness(root, PipelineSpec.model_validate(plain))
        self.catalog = replace(self.made.catalog, pipelines={PIPELINE: self.made.spec})
        self.events = 0
        self.round(activities=("a", "b", "c"))
        self.round(("rename", "a", "b"), activities=("a", "b"))
        self.round(("rename", "b", "d"), ("delete", "c", None), activities=("a", "b", "c", "d"))

    def round(self, *requests: tuple[str, str, str | None], activities: tuple[str, ...] = ()) -> None:
        """Land some activities and requests as one batch, and apply what there is."""
        self.send(*requests, activities=activities)
        self.run()

    def send(self, *requests: tuple[str, str, str | None], activities: tuple[str, ...] = ()) -> None:
        at = f"2026-01-01T00:{self.events:02}"
        for number, contact in enumerate(activities):
            values = {"org_id": "acme", "contact_id": contact, "f": "f1", "g": "g1", "h": "h1"}
            self._put({"kind": "activity", "id": f"e{self.events}-{number}", "time": f"{at}:{number:02}Z"} | values)
        for number, (op, target, to) in enumerate(requests):
            fields = {"org_id": "acme", "op": op, "id": target, "new_id": to, "seq": number}
            self._put({"kind": "request", "time": f"{at}:{30 + number}Z"} | fields)
        self.topic.producer.flush()
        self.events += 1

    def _put(self, event: dict[str, Any]) -> None:
        self.topic.raw(json.dumps(event).encode())

    def run(self) -> None:
        IngestRun(self.spark, self.catalog, PIPELINE, parts=STREAM_PARTS, available_now=True).run()
        MutationRun(lambda: self.spark, self.catalog, PIPELINE).run()

    def ended(self) -> dict[str, list[tuple[Any, ...]]]:
        """What rows and intervals say, whatever batch they came in."""
        rows = [(row["event_id"], row["origin_contact_id"], row["contact_id"], row["_deleted"]) for row in self.rows()]
        intervals = [
            (row["org_id"], row["id"], str(row["valid_from"]), row["final_id"]) for row in self.made.rows("intervals")
        ]
        return {"rows": sorted(rows, key=str), "intervals": sorted(intervals, key=str)}

    def versions(self) -> dict[str, int]:
        """The version of every table of the pipeline."""
        tables = {name: self.made.lake.open(paths.table(PIPELINE, name)) for name in declared_tables(self.made.spec)}
        return {name: table.version() for name, table in tables.items() if table is not None}

    def rows(self) -> list[dict[str, Any]]:
        return [{"_deleted": None, **row} for row in self.made.rows(DATA)]

    def back(self, batch: int, **options: Any) -> StartOverResult:
        return start_over(
            self.catalog, PIPELINE, restore_point=RestorePoint(batch=batch), spark=lambda: self.spark, **options
        )


@pytest.mark.parametrize("batch", [0, 1])
def test_all_tables_are_rolled_back_and_all_requests_are_applied_again(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, batch: int
) -> None:
    harness = RollbackHarness(spark, tmp_path, Topic(broker, f"back-{batch}", 1))
    before, told, versions = harness.ended(), len(harness.made.rows(TOLD)), harness.versions()

    counted = harness.back(batch)
    assert counted.strategy is not None
    assert counted.strategy.kind == "restore"
    assert harness.ended() == before, "a dry run changes nothing"
    assert harness.versions() == versions
    done = harness.back(batch, dry_run=False, max_rows=counted.rows)
    assert done.rows == counted.rows
    assert len(harness.rows()) == {0: 3, 1: 5}[batch]
    assert harness.made.rows("intervals") == []
    harness.run()

    assert harness.ended() == before
    assert len({row[0] for row in before["rows"]}) == 9
    assert len(harness.made.rows(TOLD)) >= told - done.rows


def test_nothing_changes_if_the_topic_no_longer_has_the_landed_records(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    topic = Topic(broker, "expired", 1)
    harness = RollbackHarness(spark, tmp_path, topic)
    before, versions = harness.ended(), harness.versions()
    (deleted,) = topic.admin.delete_records([TopicPartition("expired", 0, 10)]).values()
    deleted.result()

    counted = harness.back(1)
    with pytest.raises(ContractError, match="does not have all that landed since: expired/0/6-9") as refused:
        harness.back(1, dry_run=False, max_rows=counted.rows)

    assert counted.strategy is not None
    assert counted.strategy.kind == "none"
    assert refused.value.condition == "ROLLBACK_LOSES_ROWS"
    assert harness.ended() == before
    assert harness.versions() == versions
