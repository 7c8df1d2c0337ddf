"""`deltaworks consumers` lists aws_resources, and deregisters them only without dry run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.cli import aws_resources
from deltaworks.errors import ConfigError
from deltaworks.specs.record_sources import KafkaSourceSpec, KinesisSourceSpec
from deltaworks.specs.storage import AwsSpec
from tests.commands import output_of
from tests.kinesis_server import kinesis_client, running_kinesis

SOURCES = {
    "games": KinesisSourceSpec(kind="kinesis", stream="games", consumer_mode="fan_out"),
    "edits": KafkaSourceSpec(kind="kafka", bootstrap_servers="localhost:9092", topics=("edits",)),
}
run = partial(output_of, "consumers")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("KEY", "testing")
    with running_kinesis() as endpoint:
        aws = AwsSpec(endpoint=endpoint, access_key="env:KEY", secret_key="env:KEY")
        project = SimpleNamespace(
            environment=SimpleNamespace(messaging=aws), pipeline=lambda name: SimpleNamespace(source=SOURCES[name])
        )
        monkeypatch.setattr(aws_resources, "catalog", lambda **_: project)
        client = kinesis_client(endpoint)
        client.create_stream(StreamName="games", ShardCount=1)
        yield client
        client.delete_stream(StreamName="games")


def register(client: Any, *names: str) -> str:
    arn = str(client.describe_stream_summary(StreamName="games")["StreamDescriptionSummary"]["StreamARN"])
    for name in names:
        client.register_stream_consumer(StreamARN=arn, ConsumerName=name)
    return arn


def test_a_consumer_is_listed_and_deregistered_only_without_dry_run(client: Any) -> None:
    arn = register(client, "deltaworks-games", "other")

    def names() -> list[str]:
        return [each["ConsumerName"] for each in client.list_stream_consumers(StreamARN=arn)["Consumers"]]

    assert "this pipeline's" in run("list", "games")
    assert "would be deregistered" in run("deregister", "games")
    assert names() == ["deltaworks-games", "other"]
    assert "is deregistered" in run("deregister", "games", "--no-dry-run")
    assert names() == ["other"]
    assert "nothing to do" in run("deregister", "games", "--no-dry-run")
    assert "is deregistered" in run("deregister", "games", "--name", "other", "--no-dry-run")
    assert names() == []


def test_a_pipeline_without_a_kinesis_stream_is_rejected(client: Any) -> None:
    with pytest.raises(ConfigError, match=r"PIPELINE_WITHOUT_CONSUMERS.*edits reads kafka"):
        run("list", "edits")
