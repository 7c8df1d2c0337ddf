"""The consumer through which a pipeline reads its stream."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.sources.kinesis import source as kinesis
from deltaworks.sources.kinesis.options import KinesisOptions
from deltaworks.specs.sources.records import KinesisSourceSpec
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import local_storage


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
