"""Opens the sinks of a collector's declaration in an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collector.delivery import CloseThresholds
from collector.drain import Destination, LandingDestination, RecordDestination
from collector.sinks.kafka import KafkaSink
from collector.sinks.kinesis import KinesisSink
from collector.sinks.landing import LandingSink, landing_client
from collector.stream_writer import MAX_RECORD_BYTES, StreamWriter
from deltaworks.errors import ConfigError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSourceSpec, CollectorSpec, KinesisSinkSpec, LandingSinkSpec
from deltaworks.specs.environment import EnvironmentSpec

#: Attempts per call; the spool retries after that without limit and reports the failure.
_ATTEMPTS_PER_CALL = 3


def open_destinations(
    spec: CollectorSpec, catalog: Catalog, *, close_seconds: float | None = None
) -> dict[str, Destination]:
    """Returns the destination of each source.

    Args:
        close_seconds: close objects after this time if the declaration has a longer one.

    Raises:
        ConfigError: COLLECTOR_SINK, neither sink nor pipeline names the bucket or stream; or an unset reference.
    """
    clients: dict[str, Any] = {}
    destinations: dict[str, Destination] = {}
    for name, source in spec.sources.items():
        destinations[name] = _open_destination(name, source, catalog, clients, close_seconds)
    return destinations


def _open_destination(
    name: str, source: CollectorSourceSpec, catalog: Catalog, clients: dict[str, Any], close_seconds: float | None
) -> Destination:
    sink, environment = source.sink, catalog.environment
    if isinstance(sink, LandingSinkSpec):
        bucket = sink.bucket or _pipeline_setting(name, source, catalog, "bucket")
        seconds = sink.close_seconds if close_seconds is None else min(sink.close_seconds, close_seconds)
        if "s3" not in clients:
            clients["s3"] = landing_client(environment.landing)
        closes = CloseThresholds(bytes=sink.close_bytes, seconds=seconds)
        return LandingDestination(sink=LandingSink(clients["s3"], bucket), prefix=sink.prefix, thresholds=closes)
    if isinstance(sink, KinesisSinkSpec):
        stream = sink.stream or _pipeline_setting(name, source, catalog, "stream")
        client = clients.setdefault("kinesis", _kinesis_client(environment))
        size = sink.record_bytes
        writer = StreamWriter(client, stream, record_bytes=max(MAX_RECORD_BYTES, size), attempts=_ATTEMPTS_PER_CALL)
        return RecordDestination(open_sink=lambda: KinesisSink(writer, aggregate_bytes=size))
    options: Mapping[str, Any] = {"bootstrap.servers": resolve_text(sink.bootstrap_servers)}
    topic = sink.topic
    return RecordDestination(open_sink=lambda: KafkaSink(options, topic))


def _pipeline_setting(name: str, source: CollectorSourceSpec, catalog: Catalog, key: str) -> str:
    """Returns a setting from the source section of the pipeline that a collector source feeds."""
    setting = getattr(catalog.pipeline(source.pipeline).source, key, None)
    if isinstance(setting, str) and setting:
        return setting
    kind = catalog.pipeline(source.pipeline).source.kind
    raise ConfigError(
        "COLLECTOR_SINK_UNDEFINED",
        f"The {source.sink.kind} sink of source {name!r} has no {key}, and its pipeline {source.pipeline!r} reads "
        f"{kind}, which has none.",
        hint=f"Set sources.{name}.sink.{key} in the collector's file.",
    )


def _kinesis_client(environment: EnvironmentSpec) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "max_attempts": 1})
    return boto3.session.Session().client("kinesis", config=config, **environment.messaging.boto3_options())
