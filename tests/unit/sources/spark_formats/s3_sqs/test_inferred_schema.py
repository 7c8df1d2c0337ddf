"""The first version of a schema from announced objects: sampling loses nothing and is bounded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.events.inference.schema_versions import SchemaVersion
from deltaworks.sources.spark_formats.s3_sqs.inferred_schema import (
    find_version,
    inferred_schema,
    schema_versions,
    spark_schema,
)
from deltaworks.sources.spark_formats.s3_sqs.options import S3SqsOptions, SchemaOptions
from deltaworks.sources.spark_formats.s3_sqs.query_relay import QueryRelay, list_slice, open_log
from deltaworks.sources.spark_formats.s3_sqs.reader import S3SqsStreamReader
from tests.unit.sources.conftest import Landing


class Query:
    """A query that is given no schema."""

    def __init__(self, landing: Landing, root: Path, **changes: str) -> None:
        given = {
            "queueUrl": landing.queue_url,
            "fileFormat": "json",
            "endpoint": landing.endpoint,
            "pathStyle": "true",
            "accessKey": "env:DELTAWORKS_AWS_ACCESS_KEY",
            "secretKey": "env:DELTAWORKS_AWS_SECRET_KEY",
            "stateLocation": f"{root}/state",
            "inferredSchemaLocation": f"{root}/schema",
        }
        self.options = S3SqsOptions.parse(given | changes)
        assert self.options.inference is not None
        self.inference: SchemaOptions = self.options.inference

    def schema(self) -> StructType:
        return inferred_schema(self.options, self.inference)

    def types(self) -> dict[str, str]:
        return {field.name: field.dataType.simpleString() for field in self.schema()}

    def versions(self) -> list[SchemaVersion]:
        return list(schema_versions(self.inference).newest_first())

    def ahead(self) -> list[str]:
        """The keys a query that begins now has before it."""
        log, slices = open_log(self.options)
        return sorted(reference.key for (_, reference), _ in list_slice(slices, 0, log.last_seq()))


def test_sampling_takes_nothing_from_the_query_and_leaves_no_message_in_flight(
    landing: Landing, tmp_path: Path
) -> None:
    keys = [f"games/day=2026-01-0{number}/{number}.json" for number in range(1, 5)]
    landing.put(*keys, body=b'{"id": 1, "DAY": "data"}{broken')
    landing.put("games/day=2026-01-05/empty.json", body=b"")
    query = Query(landing, tmp_path, partitionColumns="day", schemaHints="day DATE, _key STRING")
    assert query.types() == {"id": "bigint", "day": "date", "_key": "string", "_rescued_data": "string"}
    assert query.ahead() == [*keys, "games/day=2026-01-05/empty.json"]
    assert landing.waiting() == (0, 0)
    (version,) = query.versions()
    counts = {name: version.sample[name] for name in ("objects", "unusable_objects", "events", "skipped_values")}
    assert counts == {"objects": 5, "unusable_objects": 1, "events": 4, "skipped_values": 4}
    assert version.added == ("id long", "day date", "_key string")


@pytest.mark.integration
def test_concurrently_started_queries_agree_and_respect_the_sample_size(landing: Landing, tmp_path: Path) -> None:
    for number in range(6):
        landing.put(f"{number}.json", body=b'{"f%d": 1}' % number)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: Query(landing, tmp_path, schemaSampleFiles="2").schema(), range(2))
    assert one == other
    (version,) = Query(landing, tmp_path).versions()
    assert (version.number, version.sample["objects"]) == (1, 2)
    bytewise = Query(landing, tmp_path, schemaSampleBytes="10", inferredSchemaLocation=f"{tmp_path}/other")
    bytewise.schema()
    assert bytewise.versions()[0].sample["objects"] == 1


def test_later_queries_use_the_stored_version_and_other_hints_create_the_next(landing: Landing, tmp_path: Path) -> None:
    landing.put("1.json", body=b'{"id": 1, "price": 4.5}')
    query = Query(landing, tmp_path)
    first = query.schema()
    landing.put("2.json", body=b'{"other": true}')
    assert Query(landing, tmp_path).schema() == first
    hinted = Query(landing, tmp_path, schemaHints="price DECIMAL(9,2), at TIMESTAMP")
    assert [hinted.types() for _ in range(2)] == [
        {"id": "bigint", "price": "decimal(9,2)", "at": "timestamp", "_rescued_data": "string"}
    ] * 2
    newest, oldest = hinted.versions()
    assert (newest.number, newest.added, oldest.number) == (2, ("price decimal(9,2)", "at timestamp"), 1)
    assert (find_version(first, query.inference), find_version(hinted.schema(), query.inference)) == (oldest, newest)
    given = spark_schema(SchemaVersion(number=1, inferred_columns={}, hints="id STRING"), query.inference)
    with pytest.raises(ConfigError, match=r"'inferredSchemaLocation' excludes .schema"):
        find_version(given, query.inference)


FIRST = b'{"id": 1, "user": {"name": "a"}}'
LATER = b'{"id": 3, "level": 7, "user": {"name": "b", "age": 9}}{"id": "four", "ID": 4}'


def test_each_mode_handles_a_new_column_and_the_batch_can_be_read_again(landing: Landing, tmp_path: Path) -> None:
    modes = ("addNewColumns", "rescue", "failOnNewColumns", "none")
    landing.put("1.json", body=FIRST)
    queries = {
        mode: Query(landing, tmp_path, schemaEvolutionMode=mode, inferredSchemaLocation=f"{tmp_path}/{mode}")
        for mode in modes
    }
    queries["none"].schema()
    (first,) = queries["none"].versions()
    for mode in modes[:3]:
        schema_versions(queries[mode].inference).update(lambda _: first)
    begun = {mode: query.schema() for mode, query in queries.items()}
    landing.put("2.json", body=LATER)
    QueryRelay(queries["rescue"].options).drain()
    adding, failing = queries["addNewColumns"], queries["failOnNewColumns"]

    assert rows(queries["none"], begun["none"]) == [{"id": 3, "user": {"name": "b"}}]
    found = rows(queries["rescue"], begun["rescue"])
    rescued = [row.pop("_rescued_data") for row in found]
    assert found == [{"id": 3, "user": {"name": "b"}}, {"id": None, "user": None}]
    assert [json.loads(text)["fields"] for text in rescued] == [
        {"level": 7, "user": {"age": 9}},
        {"id": "four", "ID": 4},
    ]
    for _ in range(2):
        with pytest.raises(ContractError, match=r"SCHEMA_COLUMNS_NEW.*2.json has fields .* user.age long, level long"):
            rows(failing, begun["failOnNewColumns"])
    assert [len(queries[mode].versions()) for mode in modes] == [1, 1, 1, 1]
    for _ in range(2):  # a task that is tried again keeps no other version
        with pytest.raises(TransientError, match=r"SCHEMA_COLUMNS_ADDED.*user.age long, level long. Version 2 "):
            rows(adding, begun["addNewColumns"])
    assert [version.number for version in adding.versions()] == [2, 1]
    again = rows(adding, adding.schema())
    assert (again[0]["level"], again[0]["user"], again[0]["_rescued_data"]) == (7, {"name": "b", "age": 9}, None)
    assert len(again) == 2


def rows(query: Query, schema: StructType) -> list[dict[str, Any]]:
    """What a query gives of the second object, planned as a batch is that was begun before."""
    reader = S3SqsStreamReader(query.options, schema)
    parts = reader.partitions({"seq": 1}, {"seq": 2})
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.integration
def test_a_missing_sample_is_reported(landing: Landing, tmp_path: Path) -> None:
    query = Query(landing, tmp_path)
    with pytest.raises(TransientError, match=r"SCHEMA_NOTHING_TO_SAMPLE.*nothing has been announced yet"):
        query.schema()
    landing.put("1.json", body=b"<html>")
    with pytest.raises(TransientError, match=r"SCHEMA_NOTHING_TO_SAMPLE.*none of 1 objects holds an event"):
        query.schema()
    assert query.versions() == []
    assert query.ahead() == ["1.json"]
