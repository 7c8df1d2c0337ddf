"""The games pipeline reads objects, Kafka or Kinesis by one line of its declaration: equal events give equal tables."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from collector.drain import RecordDestination
from collector.lambda_gateway import Gateway
from collector.records import OutgoingRecord
from collector.sinks.kinesis import KinesisSink
from collector.stream_writer import RejectedRecord, StreamWriter
from deltaworks.control import paths
from deltaworks.engine.runner import IngestRun
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.collector import CollectorSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import load_project, present, write_files
from generator.games import deliveries
from generator.settings import GamesSettings
from sandbox.servers.kafka_broker import running_broker
from tests.kinesis_server import running_kinesis

pytestmark = pytest.mark.integration
# At import, so before any session starts its JVM: workers inherit what the JVM was started with.
os.environ.setdefault("DELTAWORKS_AWS_ACCESS_KEY", "testing")
os.environ.setdefault("DELTAWORKS_AWS_SECRET_KEY", "testing")
AT = 1_709_300_000
#: What of the declaration decides what a row holds; all else reads tables.
ROWS_DEPEND_ON = ("pipeline", "description", "owner", "unwrap", "event", "tables", "quarantine")
#: What differs by where an event came from, and by when.
OF_THE_SOURCE = {"_seq", "_position", "_batch_id", "_ingested_at", "object_key", "record", "spec_fingerprint"}
OF_THE_SOURCE |= {"quarantine_date", "arrived_at"}
KEYS = {"access_key": "env:DELTAWORKS_AWS_ACCESS_KEY", "secret_key": "env:DELTAWORKS_AWS_SECRET_KEY"}
COLLECTOR = CollectorSpec.model_validate(
    {
        "collector": "edge",
        "sources": {
            "games": {
                "pipeline": "games",
                "keys": [{"sha256": hashlib.sha256(b"a-key").hexdigest()}],
                "wrap": "api_gateway",
                "sink": {"kind": "kinesis", "stream": "games"},
            }
        },
    }
)


class NotingWriter(StreamWriter):
    """Puts records into the stream and remembers them, so that others are sent the very same."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, "games")
        self.sent: list[OutgoingRecord] = []

    def put(self, records: Sequence[OutgoingRecord]) -> list[RejectedRecord]:
        self.sent += records
        return super().put(records)


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with running_kinesis() as address:
        yield address


@pytest.fixture(scope="module")
def sent(aws: str) -> list[bytes]:
    """What the collector put into the stream of two shards: posted events, and pieces that are broken."""
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = boto3.client("kinesis", endpoint_url=aws, **keys)
    client.create_stream(StreamName="games", ShardCount=2)
    writer = NotingWriter(client)
    objects = [gzip.decompress(each.body) for each in deliveries(GamesSettings(seed=5, target_events=1_500))]
    pieces = [piece for each in objects for piece in read_events(each)]
    posted = [value["body"] for value, _ in pieces if isinstance(value, dict) and value.get("body")]
    # Records of one event each, as other producers put them.
    sink = KinesisSink(writer, aggregate_bytes=0, keys=random.Random(1))
    gateway = Gateway(COLLECTOR, {"games": RecordDestination(open_sink=lambda: sink)}, clock=lambda: AT)
    _post(gateway, posted)
    others = [raw for value, raw in pieces if not (isinstance(value, dict) and value.get("body"))]
    assert posted
    assert others
    writer.put([OutgoingRecord(raw, "7") for raw in others])
    return apart([record.data for record in writer.sent])


def apart(records: list[bytes]) -> list[bytes]:
    """The records with those that are no JSON between others: side by side in an object they would be one piece."""
    broken = [record for record in records if any(isinstance(value, Malformed) for value, _ in read_events(record))]
    whole = [record for record in records if record not in broken]
    step = len(whole) // (len(broken) + 1)
    for number, record in enumerate(broken, 1):
        whole.insert(number * (step + 1) - 1, record)
    return whole


def _post(gateway: Gateway, bodies: list[str]) -> None:
    for start in range(0, len(bodies), 400):
        answer = gateway.handle(
            {
                "httpMethod": "POST",
                "path": "/v1/events",
                "queryStringParameters": {"writeKey": "a-key"},
                "headers": {"Content-Type": "application/x-ndjson"},
                "body": "\n".join(bodies[start : start + 400]),
            }
        )
        assert answer["statusCode"] == 200


def project(root: Path, *, read: str, aws: str, bootstrap: str = "none:1") -> Catalog:
    """The games pipeline as it is declared, its sources under names; `read` is the line that chooses one."""
    declared = yaml.safe_load((PROJECT_ROOT / "include" / "pipelines" / "games" / "pipeline.yaml").read_text())
    declared = {key: declared[key] for key in ROWS_DEPEND_ON} | {
        "sources": {
            "files": declared["source"],
            "kafka": {"kind": "kafka", "bootstrap_servers": bootstrap, "topics": ["games"]},
            "kinesis": {"kind": "kinesis", "stream": "games"},
        },
        "source": read,
        "stream": {"tasks_per_batch": 2, "lease_ttl_seconds": 3},
    }
    relay = (PROJECT_ROOT / "include" / "relays" / "landing.yaml").read_text()
    return load_project(root, declared, relays=[relay], environment={"messaging": {"endpoint": aws, **KEYS}})


def landed(spark: SparkSession, catalog: Catalog) -> dict[str, list[str]]:
    """The rows of each table after a run, without what the source decides."""
    IngestRun(spark, catalog, "games", parts=STREAM_PARTS, available_now=True).run()
    lake, spec = Lake(catalog.environment.lake), catalog.pipeline("games")
    found = {}
    for name in [*(table.name for table in spec.tables), "quarantine"]:
        rows = present(lake.rows(paths.table("games", name)))
        kept = [{key: value for key, value in row.items() if key not in OF_THE_SOURCE} for row in rows.to_pylist()]
        for reason in (reason for row in kept for reason in row.get("reasons") or []):
            if reason["code"] == "malformed":  # says at which byte of what the neighbours make of it
                reason["detail"] = ""
        found[name] = sorted(json.dumps(row, default=str, sort_keys=True) for row in kept)
    return found


def differences(found: dict[str, list[str]], wanted: dict[str, list[str]]) -> dict[str, tuple[list[str], list[str]]]:
    """Per table that differs, the rows it has too many and those it lacks."""
    assert set(found) == set(wanted)
    counts = {name: (Counter(found[name]), Counter(wanted[name])) for name in found}
    return {name: ([*(a - b).elements()], [*(b - a).elements()]) for name, (a, b) in counts.items() if a != b}


@pytest.fixture(scope="module")
def from_files(
    spark: SparkSession, sent: list[bytes], aws: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    root = tmp_path_factory.mktemp("files")
    catalog = project(root, read="files", aws=aws)
    data, key, at = b"".join(sent), "games/one.json", datetime(2024, 3, 1, tzinfo=UTC)
    write_files(root, {f"landing/{key}": data})
    source = catalog.pipeline("games").source
    event = FileEvent(source.bucket, key, len(data), hashlib.md5(data).hexdigest(), None, at, "ObjectCreated:Put", None)
    FileEventLogWriter(Lake(catalog.environment.lake), source.relay, epoch=1).append([ReceivedEvent(event, "m", at)])
    return landed(spark, catalog)


def test_the_tables_are_the_same_from_kinesis(
    spark: SparkSession, from_files: dict[str, list[str]], aws: str, tmp_path: Path
) -> None:
    assert sum(map(len, from_files.values())) > 2_500
    assert from_files["quarantine"]

    assert differences(landed(spark, project(tmp_path, read="kinesis", aws=aws)), from_files) == {}


def test_the_tables_are_the_same_from_kafka(
    spark: SparkSession, from_files: dict[str, list[str]], sent: list[bytes], aws: str, tmp_path: Path
) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        admin = AdminClient(broker.address.client_options())
        admin.create_topics([NewTopic("games", 3)])["games"].result()
        producer = Producer(broker.address.client_options())
        for record in sent:
            producer.produce("games", record)
        producer.flush()
        catalog = project(tmp_path, read="kafka", aws=aws, bootstrap=broker.address.bootstrap)

        assert differences(landed(spark, catalog), from_files) == {}
