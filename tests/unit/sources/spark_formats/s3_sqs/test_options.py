"""What `format("s3-sqs")` is given, and what it refuses."""

from __future__ import annotations

import pytest

from deltaworks.errors import ConfigError
from deltaworks.sources.spark_formats.s3_sqs.options import EvolutionMode, S3SqsOptions

GIVEN = {"queueUrl": "http://localhost/1/queue", "fileFormat": "json", "stateLocation": "s3://lake/state"}


def parsed(**changes: str) -> S3SqsOptions:
    return S3SqsOptions.parse(GIVEN | changes)


def test_names_are_known_in_any_case_and_defaults_are_those_of_the_documents() -> None:
    options = S3SqsOptions.parse({name.lower(): value for name, value in GIVEN.items()})
    assert (options.source.max_files_per_batch, options.source.max_bytes_per_batch) == (1000, 256 << 20)
    assert (options.max_partitions, options.relay.receive_threads, options.relay.overwrites) == (8, 2, "latest")
    assert options.any_bucket
    assert options.messaging.region == "us-east-1"


@pytest.mark.parametrize("name", ["queueUrl", "fileFormat", "stateLocation"])
def test_what_is_required_says_what_for(name: str) -> None:
    with pytest.raises(ConfigError, match=f"SOURCE_OPTION_INVALID.*'{name}' is required: "):
        parsed(**{name: ""})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"maxFiles": "3"}, "'maxFiles' is not known; known are queueUrl, "),
        ({"fileFormat": "orc"}, "'fileFormat' is wrong"),
        ({"fileFormat": "text"}, "text needs a pattern"),
        ({"pattern": "(?P<a>.)"}, "text needs a pattern"),
        ({"maxFilesPerTrigger": "none"}, "'maxFilesPerTrigger' is wrong"),
        ({"maxBytesPerTrigger": "0"}, "'maxBytesPerTrigger' is wrong"),
        ({"maxPartitions": "many"}, "'maxPartitions' must be a whole number"),
        ({"pathStyle": "yes"}, "'pathStyle' must be true or false"),
        ({"stateLocation": "ftp://lake/state"}, "'stateLocation' is wrong: write s3://bucket/prefix"),
        ({"fetchParallelism": "0"}, "'fetchParallelism' is wrong"),
        ({"partitionColumns": "day,9"}, "'partitionColumns' is wrong"),
        ({"fileFormat": "csv", "delimiter": "||"}, "'delimiter' is wrong"),
        ({"fileFormat": "csv", "columns": "a,a"}, "'columns' is wrong"),
        ({"accessKey": "AKIAIOSFODNN7EXAMPLE"}, "'accessKey' is wrong"),
        ({"secretKey": "env:SECRET"}, "both access_key and secret_key"),
        ({"overwrites": "sometimes"}, "'overwrites' is wrong"),
        ({"glob": "a{b"}, "a brace too many"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match="SOURCE_OPTION_INVALID") as raised:
        parsed(**changes)
    assert said in raised.value.message
    assert "AKIA" not in raised.value.message


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("s3a://lake/state", "s3://lake/state"),
        ("/data/state", "file:///data/state"),
        ("file:/data/state", "file:///data/state"),
    ],
)
def test_a_state_may_be_written_as_spark_writes_it(given: str, root: str) -> None:
    assert parsed(stateLocation=given).state.root == root


def test_queue_buckets_and_state_are_reached_the_same_way_unless_the_state_is_elsewhere() -> None:
    options = parsed(
        endpoint="http://localhost:5000",
        region="eu-west-1",
        accessKey="env:KEY",
        secretKey="env:SECRET",
        pathStyle="true",
        stateEndpoint="http://localhost:9000",
    )
    landing = options.landing("clicks")
    assert (landing.root, landing.endpoint, landing.path_style) == ("s3://clicks", "http://localhost:5000", True)
    assert (options.state.endpoint, options.state.region) == ("http://localhost:9000", "eu-west-1")
    assert str(options.messaging.secret_key) == str(landing.secret_key) == "env:SECRET"


def test_names_of_columns_stand_for_a_header() -> None:
    assert parsed(fileFormat="csv").source.csv.header
    without = parsed(fileFormat="csv", columns="a, b", delimiter=";").source.csv
    assert (without.header, without.columns, without.delimiter) == (False, ("a", "b"), ";")
    assert parsed(fileFormat="tsv", columns="a,b").source.tsv.columns == ("a", "b")


def test_columns_are_to_be_found_where_there_is_a_place_for_them() -> None:
    assert parsed().inference is None
    found = parsed(inferredSchemaLocation="/data/schema", endpoint="http://localhost:1", pathStyle="true").inference
    assert found is not None
    assert (found.location.root, found.location.path_style) == ("file:///data/schema", True)
    assert (found.hints, found.typed, found.mode) == ("", True, EvolutionMode.ADD_NEW_COLUMNS)
    assert (found.sample_files, found.sample_bytes) == (100, 64 << 20)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schemaHints": "a INT"}, "'schemaHints' goes with inferredSchemaLocation"),
        ({"schemaLocation": "/data/schema"}, "Delta's, which takes it of any source: write inferredSchemaLocation"),
        ({"inferredSchemaLocation": "ftp://x"}, "'inferredSchemaLocation' is wrong: write s3://"),
        ({"inferredSchemaLocation": "/s", "schemaHints": "a"}, "'schemaHints' cannot be read: 'a' is no hint"),
        ({"inferredSchemaLocation": "/s", "inferColumnTypes": "no"}, "'inferColumnTypes' must be true or false"),
        ({"inferredSchemaLocation": "/s", "schemaEvolutionMode": "all"}, "addNewColumns, rescue, failOnNewColumns"),
        ({"inferredSchemaLocation": "/s", "schemaSampleFiles": "0"}, "'schemaSampleFiles' must be between 1 and"),
        ({"inferredSchemaLocation": "/s", "schemaSampleBytes": "x"}, "'schemaSampleBytes' must be a whole number"),
    ],
)
def test_what_cannot_be_used_of_a_schema_to_be_found_is_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match="SOURCE_OPTION_INVALID") as raised:
        parsed(**changes)
    assert said in raised.value.message


@pytest.mark.parametrize("written", ["failonnewcolumns", "failOnNewColumns"])
def test_a_mode_is_known_in_any_case(written: str) -> None:
    found = parsed(inferredSchemaLocation="/s", schemaEvolutionMode=written).inference
    assert found is not None
    assert found.mode is EvolutionMode.FAIL_ON_NEW_COLUMNS
