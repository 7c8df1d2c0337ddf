"""Valid and rejected options of `format("s3-sqs")`."""

from __future__ import annotations

import pytest

from deltaworks.errors import ConfigError
from deltaworks.sources.spark_formats.s3_sqs.options import FileQueryOptions, parse_s3_sqs
from deltaworks.sources.spark_formats.s3_sqs.source import S3SqsDataSource

GIVEN = {"queueUrl": "http://localhost/1/queue", "fileFormat": "json", "stateLocation": "s3://lake/state"}


def parsed(**changes: str) -> FileQueryOptions:
    return parse_s3_sqs(GIVEN | changes)


def test_option_names_are_case_insensitive_and_defaults_are_as_documented() -> None:
    options = parse_s3_sqs({name.lower(): value for name, value in GIVEN.items()})
    assert (options.source.max_files_per_batch, options.source.max_bytes_per_batch) == (1000, 256 << 20)
    assert (options.max_partitions, options.relay.receive_threads, options.relay.overwrites) == (8, 2, "latest")
    assert options.any_bucket
    assert options.messaging.region == "us-east-1"


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs-fips.us-east-2.amazonaws.com", "us-east-2"),
        ("sqs.ap-southeast-2.api.aws", "ap-southeast-2"),
        ("vpce-0a1b-c2d3.sqs.eu-central-1.vpce.amazonaws.com", "eu-central-1"),
        ("eu-west-2.queue.amazonaws.com", "eu-west-2"),
        ("queue.amazonaws.com", "us-east-1"),
        ("localhost:5000", "us-east-1"),
    ],
)
def test_the_default_region_is_the_queues(host: str, region: str) -> None:
    options = parsed(queueUrl=f"https://{host}/123456789012/clicks")
    assert (options.messaging.region, options.state.region, options.landing("a").region) == (region,) * 3
    assert parsed(queueUrl=f"https://{host}/1/clicks", region="sa-east-1").messaging.region == "sa-east-1"


def test_a_queue_without_a_region_uses_the_aws_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert parsed().messaging.region == "eu-north-1"
    monkeypatch.setenv("QUEUE", "https://sqs.eu-west-1.amazonaws.com/1/clicks")
    assert parsed(queueUrl="env:QUEUE").messaging.region == "eu-west-1"


def state_below(checkpoint: str, **changes: str) -> str:
    """Where the state is of a query that is given none."""
    return parsed(stateLocation="", sourcecheckpointlocation=checkpoint, **changes).state.root


def test_the_default_state_location_is_below_the_checkpoint() -> None:
    root = state_below("s3a://lake/checkpoint/sources/0")
    assert root.startswith("s3://lake/checkpoint/sources/s3_sqs-")
    assert state_below("file:/data/c/sources/0").startswith("file:///data/c/sources/s3_sqs-")
    assert parsed(sourceCheckpointLocation="file:/data/c/sources/0").state.root == "s3://lake/state"


def test_sources_of_one_query_share_a_state_if_they_share_the_queue() -> None:
    first, second = "file:/c/sources/0", "file:/c/sources/1"
    assert state_below(first) == state_below(second)
    assert state_below(first) != state_below(second, queueUrl="http://localhost/1/other")


def test_a_checkpoint_that_cannot_hold_a_state_is_named() -> None:
    with pytest.raises(ConfigError, match="'stateLocation' is required with a checkpoint at hdfs://n/c/sources"):
        state_below("hdfs://n/c/sources/0")


def test_a_state_location_is_required_without_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match=r"'stateLocation' is required: .*the jars of include/jars"):
        parsed(stateLocation="")


@pytest.mark.parametrize("name", ["queueUrl", "fileFormat"])
def test_required_options_are_reported_with_their_purpose(name: str) -> None:
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
        ({"maxPartitions": "many"}, "'maxPartitions' must be an integer"),
        ({"pathStyle": "yes"}, "'pathStyle' must be true or false"),
        ({"stateLocation": "ftp://lake/state"}, "'stateLocation' is wrong: write s3://bucket/prefix"),
        ({"fetchParallelism": "0"}, "'fetchParallelism' is wrong"),
        ({"partitionColumns": "day,9"}, "'partitionColumns' is wrong"),
        ({"fileFormat": "csv", "delimiter": "||"}, "'delimiter' is wrong"),
        ({"fileFormat": "csv", "columns": "a,a"}, "'columns' is wrong"),
        ({"accessKey": "AKIAIOSFODNN7EXAMPLE"}, "'accessKey' is wrong"),
        ({"secretKey": "env:SECRET"}, "both access_key and secret_key"),
        ({"overwrites": "sometimes"}, "'overwrites' is wrong"),
        ({"glob": "a{b"}, "unbalanced or nested braces"),
    ],
)
def test_invalid_options_are_named(changes: dict[str, str], said: str) -> None:
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
def test_a_state_location_may_be_written_as_spark_writes_it(given: str, root: str) -> None:
    assert parsed(stateLocation=given).state.root == root


def test_queue_buckets_and_state_share_client_options_unless_the_state_has_its_own() -> None:
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


def test_column_names_replace_a_header() -> None:
    assert parsed(fileFormat="csv").source.csv.header
    without = parsed(fileFormat="csv", columns="a, b", delimiter=";").source.csv
    assert (without.header, without.columns, without.delimiter) == (False, ("a", "b"), ";")
    assert parsed(fileFormat="tsv", columns="a,b").source.tsv.columns == ("a", "b")


@pytest.mark.parametrize("name", ["inferSchema", "inferredSchemaLocation", "schemaHints", "schemaEvolutionMode"])
def test_options_of_schema_inference_name_what_to_write_instead(name: str) -> None:
    said = rf"SOURCE_OPTION_INVALID.*'{name}' is not supported: .*\.schema\(\"id long, at timestamp\"\) instead"
    with pytest.raises(ConfigError, match=said):
        parsed(**{name.lower(): "true"})
    with pytest.raises(ConfigError, match=said):
        S3SqsDataSource({name: "true"}).schema()


def test_a_schema_is_required() -> None:
    with pytest.raises(ConfigError, match=r"SOURCE_OPTION_INVALID.*no schema") as raised:
        S3SqsDataSource(GIVEN).schema()
    assert '.schema("id long, at timestamp")' in raised.value.hint
