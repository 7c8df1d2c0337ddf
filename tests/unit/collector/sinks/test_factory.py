"""Sinks of a collector's declaration, opened in an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector.drain import LandingDestination, RecordDestination
from collector.sinks.factory import open_destinations
from collector.sinks.kinesis import KinesisSink
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.project import load_catalog
from tests.unit.specs.conftest import PIPELINE, write_project

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def spec(sink: dict[str, Any]) -> CollectorSpec:
    source = {"pipeline": "shop", "keys": [{"sha256": DIGEST}], "sink": sink}
    return CollectorSpec.model_validate({"collector": "edge", "sources": {"shop": source}})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(root=write_project(tmp_path))


def test_the_bucket_is_the_pipelines_and_objects_close_within_the_given_time(catalog: Catalog) -> None:
    way = open_destinations(spec({"kind": "landing", "prefix": "shop/"}), catalog, close_seconds=2)["shop"]
    assert isinstance(way, LandingDestination)
    assert (way.prefix, way.thresholds.bytes, way.thresholds.seconds) == ("shop/", 8 << 20, 2)
    assert way.sink._bucket == "landing"  # type: ignore[attr-defined]


def test_a_sink_without_a_stream_for_a_pipeline_without_one_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(ConfigError) as caught:
        open_destinations(spec({"kind": "kinesis"}), catalog)
    assert caught.value.condition == "COLLECTOR_SINK_UNDEFINED"
    assert "sources.shop.sink.stream" in caught.value.hint


def test_the_stream_is_the_pipelines(tmp_path: Path) -> None:
    objects = PIPELINE[PIPELINE.index("source:") : PIPELINE.index("event:")]
    streams = PIPELINE.replace(objects, "source: {kind: kinesis, stream: orders}\n")
    catalog = load_catalog(root=write_project(tmp_path, pipeline=streams))
    way = open_destinations(spec({"kind": "kinesis"}), catalog)["shop"]
    assert isinstance(way, RecordDestination)
    sink = way.open_sink()
    assert isinstance(sink, KinesisSink)
    assert sink._writer._stream == "orders"
