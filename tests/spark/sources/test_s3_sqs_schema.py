"""`format("s3-sqs")` without a schema: columns inferred from the first files, stored in versions, evolved by mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deltaworks.control.objects import open_objects
from deltaworks.events.inference.schema_versions import SchemaVersion, SchemaVersions
from deltaworks.specs.storage import StorageSpec
from tests.spark.sources.s3_sqs_harness import S3SqsHarness

pytestmark = [pytest.mark.spark, pytest.mark.integration]

FIRST = b'{"id": 1, "user": {"name": "a"}}\n{"id": 2, "score": 1.5}\n{broken\n'
LATER = b'{"id": 3, "level": 7, "user": {"name": "b", "age": 9}}{"id": "four", "ID": 4}{"id": 5}'


class SchemaHarness(S3SqsHarness):
    """Queries that find their columns."""

    def options(self, **changes: str) -> dict[str, str]:
        return super().options(**({"inferredSchemaLocation": f"file://{self.root}/schema"} | changes))

    def versions(self) -> list[SchemaVersion]:
        """Oldest first."""
        place = f"file://{self.root}/schema"
        return list(SchemaVersions(open_objects(StorageSpec(root=place)), place).newest_first())[::-1]

    def by_id(self) -> dict[Any, dict[str, Any]]:
        return {row["id"]: row for row in self.rows()}


@pytest.fixture
def harness(spark: SparkSession, landing: Any, tmp_path: Path) -> SchemaHarness:
    landing.sqs.set_queue_attributes(QueueUrl=landing.queue_url, Attributes={"VisibilityTimeout": "30"})
    return SchemaHarness(spark, landing, tmp_path)


def rescued(row: dict[str, Any]) -> Any:
    return row["_rescued_data"] and json.loads(row["_rescued_data"])["fields"]


def test_a_new_column_ends_the_query_once_and_the_restart_reads_the_batch_again_with_it(harness: SchemaHarness) -> None:
    harness.landing.put("games/1.json", body=FIRST)
    harness.drain()
    assert harness.by_id()[1] == {"id": 1, "user": {"name": "a"}, "score": None, "_rescued_data": None}
    assert sorted(harness.by_id()) == [1, 2]
    harness.landing.put("games/2.json", body=LATER)
    with pytest.raises(PySparkException, match="SCHEMA_COLUMNS_ADDED") as raised:
        harness.drain()
    assert "user.age long, level long" in str(raised.value)
    assert "Restart the query" in str(raised.value)
    harness.drain()
    rows = harness.rows()
    assert [(row["id"], row["level"], row["user"]) for row in rows if row["level"]] == [(3, 7, {"name": "b", "age": 9})]
    assert sorted(rescued(row) or {} for row in rows if row["id"] is None) == [{"id": "four", "ID": 4}]
    assert len(rows) == 3
    assert harness.unread() == [("games/1.json", 2, "malformed")]
    first, second = harness.versions()
    assert (first.sample["keys"], first.sample["events"], first.sample["unread"]) == (["games/1.json"], 2, 1)
    assert (second.number, second.added, second.sample["keys"]) == (
        2,
        ("user.age long", "level long"),
        ["games/2.json"],
    )


@pytest.mark.integration
def test_without_evolution_a_new_field_is_ignored_and_a_conversion_error_is_rejected(harness: SchemaHarness) -> None:
    harness.landing.put("games/1.json", body=FIRST)
    harness.drain(schemaEvolutionMode="none")
    harness.landing.put("games/2.json", body=LATER)
    harness.drain(schemaEvolutionMode="none")
    assert harness.by_id() == {
        3: {"id": 3, "user": {"name": "b"}, "score": None},
        5: {"id": 5, "user": None, "score": None},
    }
    assert harness.unread() == [("games/1.json", 2, "malformed"), ("games/2.json", 1, "type_mismatch")]
    assert len(harness.versions()) == 1


@pytest.mark.integration
def test_rescue_keeps_new_fields_conversion_errors_and_other_cases_with_their_object(harness: SchemaHarness) -> None:
    harness.landing.put("games/1.json", body=FIRST)
    harness.drain(schemaEvolutionMode="rescue")
    harness.landing.put("games/2.json", body=LATER)
    harness.drain(schemaEvolutionMode="rescue")
    found = {row["id"]: rescued(row) for row in harness.rows()}
    assert found == {3: {"level": 7, "user": {"age": 9}}, None: {"id": "four", "ID": 4}, 5: None}
    uri = f"s3://{harness.landing.bucket}/games/2.json"
    assert {json.loads(row["_rescued_data"])["object"] for row in harness.rows() if row["_rescued_data"]} == {uri}
    assert harness.unread() == [("games/1.json", 2, "malformed")]
    assert len(harness.versions()) == 1


@pytest.mark.integration
def test_a_query_that_fails_on_new_columns_continues_after_its_advice(harness: SchemaHarness) -> None:
    harness.landing.put("games/1.json", body=FIRST)
    harness.drain(schemaEvolutionMode="failOnNewColumns")
    harness.landing.put("games/2.json", body=LATER)
    for _ in range(2):
        with pytest.raises(PySparkException, match="SCHEMA_COLUMNS_NEW") as raised:
            harness.drain(schemaEvolutionMode="failOnNewColumns")
    assert len(harness.versions()) == 1
    assert 'schemaHints: "user.age long, level long"' in str(raised.value)
    harness.drain(schemaEvolutionMode="failOnNewColumns", schemaHints="user.age long, level long")
    assert harness.by_id()[3]["level"] == 7
    assert harness.versions()[-1].added == ("user.age long", "level long")


@pytest.mark.integration
def test_two_concurrently_started_queries_have_the_same_columns(harness: SchemaHarness) -> None:
    from concurrent.futures import ThreadPoolExecutor

    harness.landing.put(*(f"games/{number}.json" for number in range(20)), body=FIRST)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: harness.frame(), range(2))
    assert one.schema == other.schema
    assert [version.number for version in harness.versions()] == [1]


@pytest.mark.integration
def test_without_objects_the_query_fails_and_stores_no_version(harness: SchemaHarness) -> None:
    with pytest.raises(PySparkException, match=r"SCHEMA_NOTHING_TO_SAMPLE.*nothing has been announced yet"):
        harness.frame()
    assert harness.versions() == []


def test_a_schema_or_a_schema_location_is_required(harness: SchemaHarness) -> None:
    with pytest.raises(PySparkException, match=r"'inferredSchemaLocation' is required .*inferred from the first files"):
        harness.frame(inferredSchemaLocation="")
