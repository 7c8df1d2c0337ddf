"""Options and the consumer of a pipeline: which are rejected and why, and that no key is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis import source as kinesis
from deltaworks.sources.kinesis.options import KinesisOptions, check_options, render_options
from deltaworks.specs.record_sources import KinesisSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.testing import local_storage

NEEDED = {"streamname": "games", "statelocation": "s3://lake/state"}
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/games"


def test_the_defaults_lose_nothing() -> None:
    parsed = KinesisOptions.parse(NEEDED)

    assert (parsed.stream, parsed.initial_position, parsed.fetch.allow_data_loss) == ("games", "trim_horizon", False)
    assert parsed.fetch.deaggregate
    assert parsed.state == StorageSpec(root="s3://lake/state")


def test_every_option_can_be_set() -> None:
    parsed = KinesisOptions.parse(
        {
            "streamARN": ARN,
            "endpoint": "http://localhost:1",
            "accessKey": "env:KEY",
            "secretKey": "env:SECRET",
            "initialPosition": "at_timestamp",
            "initialTimestamp": "2026-03-01T12:00:00Z",
            "stateLocation": "s3a://lake/state",
            "statePathStyle": "true",
            "maxRecords": "10",
            "maxBytes": "64MiB",
            "maxSeconds": "5",
            "allowDataLoss": "true",
            "deaggregate": "false",
            "keepBatches": "7",
        }
    )

    assert (parsed.stream, parsed.arn, parsed.aws.region) == ("games", ARN, "eu-west-1")
    assert parsed.initial_timestamp == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (parsed.max_records, parsed.max_bytes, parsed.max_seconds, parsed.retained_batches) == (10, 64 << 20, 5, 7)
    assert (parsed.state.root, parsed.state.path_style) == ("s3://lake/state", True)
    assert parsed.fetch.allow_data_loss
    assert not parsed.fetch.deaggregate


@pytest.mark.parametrize(
    ("changes", "named", "says"),
    [
        ({"streamname": None}, "streamName", "required"),
        ({"streamarn": ARN}, "streamName", "not both"),
        ({"streamname": None, "streamarn": "arn:aws:s3:::games"}, "streamARN", "no ARN of a stream"),
        ({"streamname": None, "streamarn": ARN, "region": "us-east-1"}, "region", "eu-west-1"),
        ({"statelocation": None}, "stateLocation", "tasks agree on the end of each batch"),
        ({"statelocation": "ftp://x"}, "stateLocation", "s3://bucket/prefix"),
        ({"initialposition": "yesterday"}, "initialPosition", "trim_horizon"),
        ({"initialposition": '{"at_timestamp": "06/25/2026"}'}, "initialPosition", "the time in initialTimestamp"),
        ({"streamname": "games,edits"}, "streamName", "union"),
        ({"awsaccesskey": "AKIA", "accesskey": "env:KEY"}, "accesskey", "the same option"),
        ({"rolearn": "arn:aws:iam::1:role/r"}, "rolearn", "AWS_PROFILE"),
        ({"maxrecordsperfetch": "10"}, "maxrecordsperfetch", "maxRecords, maxBytes and maxSeconds"),
        ({"shardspertask": "5"}, "shardspertask", "one task reads each shard"),
        ({"failondataloss": "true"}, "failondataloss", "use allowDataLoss"),
        ({"kinesis.client.numretries": "3"}, "kinesis.client.numretries", "omit it"),
        ({"initialposition": "at_timestamp"}, "initialTimestamp", "is allowed only with"),
        ({"initialtimestamp": "2026-03-01"}, "initialTimestamp", "is allowed only with"),
        ({"initialposition": "at_timestamp", "initialtimestamp": "noon"}, "initialTimestamp", "ISO 8601"),
        ({"maxrecords": "0"}, "maxRecords", "1 or more"),
        ({"maxbytes": "much"}, "maxBytes", "integer"),
        ({"allowdataloss": "perhaps"}, "allowDataLoss", "true or false"),
        ({"startoffset": "{}"}, "startOffset", "JSON"),
        ({"maxrecord": "1"}, "maxrecord", "known are streamName"),
        ({"consumermode": "efo"}, "consumerMode", "polling, fan_out"),
        ({"consumermode": "fan_out"}, "consumerName", "is required with fan_out"),
        ({"consumername": "a b"}, "consumerName", "letters"),
        ({"accesskey": "env:KEY"}, "accessKey", "both access_key and secret_key"),
    ],
)
def test_an_invalid_option_is_named_with_its_problem(changes: dict[str, str | None], named: str, says: str) -> None:
    given = {name: value for name, value in {**NEEDED, **changes}.items() if value is not None}

    with pytest.raises(ConfigError, match="SOURCE_OPTION_INVALID") as refused:
        KinesisOptions.parse(given)

    assert repr(named) in refused.value.message
    assert says in refused.value.message


@pytest.mark.parametrize("name", ["accessKey", "secretKey", "stateAccessKey", "stateSecretKey"])
def test_a_plain_text_key_is_rejected_and_not_shown(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KinesisOptions.parse({**NEEDED, name: "AKIASECRETVALUE"})

    assert repr(name) in str(refused.value)
    assert "AKIASECRETVALUE" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_keys_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "AKIASECRETVALUE")
    monkeypatch.setenv("SECRET", "AKIASECRETVALUE")
    parsed = KinesisOptions.parse({**NEEDED, "accessKey": "env:KEY", "secretKey": "env:SECRET"})

    assert parsed.aws.boto3_options()["aws_access_key_id"] == "AKIASECRETVALUE"
    assert "AKIASECRETVALUE" not in repr(parsed)


def test_options_rendered_from_specs_are_equivalent() -> None:
    keys = {"access_key": "env:KEY", "secret_key": "env:SECRET", "endpoint": "env:ENDPOINT"}
    aws, state = AwsSpec(**keys), StorageSpec(root="s3://lake/state", path_style=True, **keys)
    rendered = render_options(aws, state, stream="games", maxRecords=5, allowDataLoss="true", startOffset=None)

    parsed = KinesisOptions.parse(rendered)

    assert (parsed.aws, parsed.state, parsed.stream, parsed.max_records) == (aws, state, "games", 5)


def test_a_single_option_changes_the_mode() -> None:
    assert KinesisOptions.parse({**NEEDED, "consumerName": "games"}).consumer is None
    assert KinesisOptions.parse({**NEEDED, "consumerName": "games", "consumerMode": "FAN_OUT"}).consumer == "games"


@pytest.mark.parametrize(
    ("text", "position"),
    [("TRIM_HORIZON", "trim_horizon"), ("earliest", "trim_horizon"), ("LATEST", "latest"), ("Latest", "latest")],
)
def test_published_positions_are_known_in_any_case(text: str, position: str) -> None:
    assert KinesisOptions.parse(NEEDED | {"initialposition": text}).initial_position == position
    assert KinesisOptions.parse(NEEDED | {"startingposition": text}).initial_position == position


@pytest.mark.parametrize("name", ["awsaccesskey", "awsaccesskeyid"])
def test_published_keys_may_be_literal_and_are_not_shown(name: str) -> None:
    parsed = KinesisOptions.parse(
        NEEDED | {name: "AKIAEXAMPLE", "awssecretkey": "wJalr/XUtnFEMI", "endpointurl": "http://localhost:1"}
    )

    keys = parsed.aws.boto3_options()
    assert (keys["aws_access_key_id"], keys["aws_secret_access_key"]) == ("AKIAEXAMPLE", "wJalr/XUtnFEMI")
    assert keys["endpoint_url"] == "http://localhost:1"
    assert "wJalr" not in repr(parsed)


def test_a_published_key_may_be_a_reference() -> None:
    parsed = KinesisOptions.parse(NEEDED | {"awsaccesskey": "env:KEY", "awssecretkey": "env:SECRET"})
    assert str(parsed.aws.secret_key) == "env:SECRET"


def test_the_default_state_of_each_source_is_below_the_checkpoint() -> None:
    roots = [
        KinesisOptions.parse(
            {"streamname": "games", "sourcecheckpointlocation": f"s3a://lake/c/sources/{at}"}
        ).state.root
        for at in (0, 1)
    ]
    assert roots == ["s3://lake/c/sources/kinesis-0", "s3://lake/c/sources/kinesis-1"]
    with pytest.raises(ConfigError, match="'stateLocation' is required with a checkpoint at hdfs://n/c/sources"):
        KinesisOptions.parse({"streamname": "games", "sourcecheckpointlocation": "hdfs://n/c/sources/0"})


def test_options_are_checked_before_the_checkpoint_is_known() -> None:
    check_options({"streamname": "games"})
    with pytest.raises(ConfigError, match="streamName"):
        check_options({})


class Reader:
    """Takes options as Spark's reader does."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.dataSource = SimpleNamespace(register=lambda source: None)
        self.readStream = self

    def format(self, name: str) -> Reader:
        return self

    def options(self, **given: str) -> Reader:
        self.given = given
        return self

    def load(self) -> dict[str, str]:
        return self.given


@pytest.mark.parametrize(
    ("declared", "consumer"),
    [
        ({}, None),
        ({"consumer_mode": "fan_out"}, "deltaworks-shop"),
        ({"consumer_mode": "fan_out", "consumer_name": "shop-staging"}, "shop-staging"),
        ({"consumer_name": "shop-staging"}, None),
    ],
)
def test_a_pipeline_reads_through_a_consumer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any], consumer: str | None
) -> None:
    monkeypatch.setattr(kinesis, "reads_record_fields", lambda spec: False)
    source = KinesisSourceSpec(kind="kinesis", stream="orders", **declared)
    environment = SimpleNamespace(messaging=AwsSpec(), lake=local_storage(tmp_path))
    catalog, spec, spark = SimpleNamespace(environment=environment), SimpleNamespace(archive=None), Reader()
    spec.source, spec.pipeline = source, "shop"
    opened: Any = kinesis.KinesisSource

    options = opened(catalog, spec).frame(spark, start=None)

    assert KinesisOptions.parse(options).consumer == consumer
