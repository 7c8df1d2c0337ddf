"""The servers of the sources: how each gets input, and how its requests for rows are recognized.

A *unit* is the entity that limits count: an object, a record, a commit of a Delta table. A *lane* is the scope of a
source's order guarantee: the events of an object, the records of a partition or shard, the rows of a commit.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake

from deltaworks.control.objects import open_objects
from deltaworks.sources.objects.relay.lister import request_listing
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from sandbox.servers.fault_proxy import FaultProxy
from sandbox.servers.kafka_broker import RunningBroker
from sandbox.servers.object_store import ObjectStoreAddress
from tests.integration.sources.contract.wire import Wire

EVENTS_A_UNIT = 4
#: Limit of units in a batch; a unit of records is one event, other units have EVENTS_A_UNIT.
LIMIT_EVENTS = 8
MOST_EVENT_BYTES = 50_000
TABLES_BUCKET = "tables"
Server = Literal["aws", "broker", "tables"]


@dataclass
class Servers:
    """The running servers. Sources reach them through wires; input goes to them directly."""

    aws_endpoint: str
    aws: Callable[[str], Any]
    broker: RunningBroker
    tables: ObjectStoreAddress
    lake: StorageSpec
    wires: Mapping[Server, Wire]
    #: Injects error responses; for the broker only connections can be cut.
    faults: Mapping[Server, FaultProxy]


def event(number: int, lane: str, *, pad_bytes: int = 0) -> dict[str, Any]:
    pad = secrets.token_hex(pad_bytes // 2)
    common = {"name": "order", "id": f"o{number}", "time": 1_700_000_000 + number}
    return common | {"number": number, "lane": lane, "pad": pad}


def as_json(*events: Mapping[str, Any]) -> bytes:
    return "\n".join(json.dumps(each) for each in events).encode()


def units_of(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Groups the events that are sent together."""
    return [numbers[start : start + EVENTS_A_UNIT] for start in range(0, len(numbers), EVENTS_A_UNIT)]


class SourceHarness(ABC):
    """One pipeline's input on the server of its source."""

    kind: ClassVar[str]
    server: ClassVar[Server] = "aws"
    #: Pattern of a request for rows; `{name}` is the input's name.
    reading: ClassVar[str]
    limits: ClassVar[Mapping[str, Any]]
    #: Events in a batch limited to 90 kB, at 10 kB per event; None if a source has no such limit.
    bytes_let_in: ClassVar[int | None] = LIMIT_EVENTS
    #: Requests that a failing server refuses, every third of them.
    refused_paths: ClassVar[str] = ".*"
    #: Codes in quarantine of what `send_malformed` sends.
    bad_codes: ClassVar[frozenset[str]]

    def __init__(self, servers: Servers, name: str) -> None:
        self.servers = servers
        self.name = name
        self.create()

    @property
    def wire(self) -> Wire:
        """The proxy between source and server."""
        return self.servers.wires[self.server]

    @property
    def faults(self) -> FaultProxy | None:
        """Injects error responses, if the server supports it."""
        return self.servers.faults.get(self.server)

    def is_reading(self, head: str) -> bool:
        """Whether a request reads rows of this input."""
        return self.row_request_description().search(head) is not None

    def row_request_description(self) -> re.Pattern[str]:
        """Describes requests for rows."""
        return re.compile(self.reading.replace("{name}", self.name))

    @abstractmethod
    def create(self) -> None:
        """Creates the empty topic, stream, table or bucket."""

    @abstractmethod
    def declared(self) -> dict[str, Any]:
        """Returns the pipeline's `source` section without limits."""

    @abstractmethod
    def send(self, numbers: Sequence[int], *, pad_bytes: int = 0) -> None:
        """Sends one event per number; all are readable when this returns."""

    @abstractmethod
    def send_malformed(self) -> None:
        """Sends empty, huge and malformed units."""


class FileHarness(SourceHarness):
    """Objects of a separate bucket."""

    reading = r"^GET /{name}/in/"
    limits: ClassVar[Mapping[str, Any]] = {"max_files_per_batch": LIMIT_EVENTS // EVENTS_A_UNIT}
    bad_codes = frozenset({"malformed", "object_empty", "object_unreadable", "too_large"})

    def create(self) -> None:
        self.servers.aws("s3").create_bucket(Bucket=self.name)

    def declared(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "relay": self.name,
            "bucket": self.name,
            "prefix": "in/",
            "max_event_bytes": MOST_EVENT_BYTES,
            "max_object_bytes": 1 << 20,
        }

    @abstractmethod
    def relay(self) -> dict[str, Any]:
        """Returns the relay's declaration."""

    @abstractmethod
    def announced(self) -> None:
        """Runs the relay until the put objects are in its log."""

    def send(self, numbers: Sequence[int], *, pad_bytes: int = 0) -> None:
        for unit in units_of(numbers):
            lane = f"u{unit[0]:05}"
            self._put(f"{lane}.json", as_json(*(event(number, lane, pad_bytes=pad_bytes) for number in unit)))
        self.announced()

    def send_malformed(self) -> None:
        self._put("empty", b"")
        self._put("broken", b'{"name": "order", "id": ')
        self._put("broken.gz", b"\x1f\x8b\x08 no gzip")
        self._put("huge_event", as_json(event(0, "bad", pad_bytes=MOST_EVENT_BYTES)))
        self._put("huge", b" " * ((1 << 20) + 1))
        self.announced()

    def _put(self, name: str, body: bytes) -> None:
        self.servers.aws("s3").put_object(Bucket=self.name, Key=f"in/{name}", Body=body)

    def _messaging(self) -> AwsSpec:
        keys = {"access_key": "env:DELTAWORKS_AWS_ACCESS_KEY", "secret_key": "env:DELTAWORKS_AWS_SECRET_KEY"}
        return AwsSpec.model_validate({"endpoint": self.servers.aws_endpoint, **keys})

    def _run_relay(self, queue: NotificationQueue | None) -> None:
        storage = StorageSpec(root=f"s3://{self.name}", path_style=True, **self._messaging().model_dump())
        spec = RelaySpec.model_validate(self.relay())
        Relay(spec, lake=self.servers.lake, queue=queue, landing=storage, until_drained=True).run()


class NotifiedHarness(FileHarness):
    """Objects announced by a queue."""

    kind = "s3_sqs"

    def create(self) -> None:
        super().create()
        aws, name = self.servers.aws, self.name
        sqs, sns = aws("sqs"), aws("sns")
        self.queue_url = sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        topic = sns.create_topic(Name=name)["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        wiring = {"TopicConfigurations": [{"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]}
        aws("s3").put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=wiring)

    def relay(self) -> dict[str, Any]:
        timing = {"append_seconds": 0.2, "lease_ttl_seconds": 3}
        return {"relay": self.name, "queue_url": self.queue_url, "buckets": [self.name], **timing}

    def announced(self) -> None:
        self._run_relay(NotificationQueue(self._messaging(), self.queue_url, wait_seconds=1))


class ListedHarness(FileHarness):
    """Objects without notifications, found by listing."""

    kind = "cloud_files"

    def relay(self) -> dict[str, Any]:
        return {"relay": self.name, "buckets": [self.name], "listing": {"prefix": "in/"}, "lease_ttl_seconds": 3}

    def announced(self) -> None:
        request_listing(open_objects(self.servers.lake), self.name, by="a test")
        self._run_relay(None)


class RecordHarness(SourceHarness):
    """Records in two lanes."""

    limits: ClassVar[Mapping[str, Any]] = {"max_records_per_batch": LIMIT_EVENTS}
    #: An empty record, or the smallest one its server accepts, and records only this server accepts.
    empty: ClassVar[Sequence[bytes | None]] = (b" ",)

    @abstractmethod
    def put(self, lane: int, value: bytes | None) -> None:
        """Sends one record."""

    def flush(self) -> None:
        """Waits until all records are stored."""

    def send(self, numbers: Sequence[int], *, pad_bytes: int = 0) -> None:
        for number in numbers:
            self.put(number % 2, as_json(event(number, f"p{number % 2}", pad_bytes=pad_bytes)))
        self.flush()

    def send_malformed(self) -> None:
        huge = as_json(event(0, "bad", pad_bytes=MOST_EVENT_BYTES))
        for value in (*self.empty, b'{"name": "order", "id": ', b"\x1f\x8b\x08 no gzip", huge):
            self.put(0, value)
        self.flush()


class KafkaHarness(RecordHarness):
    """A topic of two partitions."""

    kind = "kafka"
    server = "broker"
    reading = "^FETCH$"
    bytes_let_in = None
    empty = (b"", None)
    bad_codes = frozenset({"malformed", "object_empty", "too_large", "tombstone"})

    def create(self) -> None:
        options = self.servers.broker.address.client_options()
        admin = AdminClient(options)
        admin.create_topics([NewTopic(self.name, 2)])[self.name].result()
        self._producer = Producer(options)

    def declared(self) -> dict[str, Any]:
        place = {"bootstrap_servers": self.wire.bootstrap, "topics": [self.name]}
        return {"kind": "kafka", **place, "max_event_bytes": MOST_EVENT_BYTES}

    def put(self, lane: int, value: bytes | None) -> None:
        self._producer.produce(self.name, value, partition=lane)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


class KinesisHarness(RecordHarness):
    """A stream of two shards."""

    kind = "kinesis"
    reading = r"X-Amz-Target: Kinesis_20131202\.GetRecords"
    bad_codes = frozenset({"malformed", "object_empty", "too_large"})

    def is_reading(self, head: str) -> bool:
        # The driver also polls an idle shard for one record, which it does not return.
        return super().is_reading(head) and not re.search(r'"Limit": 1\b', head)

    def create(self) -> None:
        self.servers.aws("kinesis").create_stream(StreamName=self.name, ShardCount=2)

    def declared(self) -> dict[str, Any]:
        return {"kind": "kinesis", "stream": self.name, "max_event_bytes": MOST_EVENT_BYTES}

    def put(self, lane: int, value: bytes | None) -> None:
        key = {"PartitionKey": "k", "ExplicitHashKey": str(lane << 127)}
        self.servers.aws("kinesis").put_record(StreamName=self.name, Data=value, **key)


class DeltaHarness(SourceHarness):
    """A Delta table on s3proxy; each unit is a commit of one file."""

    kind = "delta"
    server = "tables"
    # Errors on log files are excluded: Hadoop's growing retry pauses would take minutes.
    refused_paths = r"\.parquet"
    #: Delta admits one more file while the limit is not reached.
    bytes_let_in = LIMIT_EVENTS + EVENTS_A_UNIT
    reading = r"^GET /tables/{name}/[^_].*\.parquet"
    limits: ClassVar[Mapping[str, Any]] = {"max_files_per_batch": LIMIT_EVENTS // EVENTS_A_UNIT}
    bad_codes = frozenset({"missing_required", "too_large"})
    _TYPES: ClassVar[Mapping[str, str]] = dict.fromkeys(("name", "id", "lane", "pad"), "string") | dict.fromkeys(
        ("time", "number"), "int64"
    )

    def create(self) -> None:
        self._append([])

    def declared(self) -> dict[str, Any]:
        return {"kind": "delta", "uri": f"s3://{TABLES_BUCKET}/{self.name}", "max_event_bytes": MOST_EVENT_BYTES}

    def send(self, numbers: Sequence[int], *, pad_bytes: int = 0) -> None:
        for unit in units_of(numbers):
            self._append([event(number, f"u{unit[0]:05}", pad_bytes=pad_bytes) for number in unit])

    def send_malformed(self) -> None:
        self._append([])
        self._append([{**event(0, "bad"), "number": None}])
        self._append([event(0, "bad", pad_bytes=MOST_EVENT_BYTES)])

    def _append(self, rows: list[dict[str, Any]]) -> None:
        where = tables_storage(self.servers.tables, self.servers.tables.endpoint)
        rows_of = pa.Table.from_pylist(rows, schema=pa.schema(list(self._TYPES.items())))
        write_deltalake(where.uri(self.name), rows_of, mode="append", storage_options=where.deltalake_options())


def tables_storage(address: ObjectStoreAddress, endpoint: str) -> StorageSpec:
    """Returns the bucket of the Delta tables that are read, through this endpoint. Its keys are in the environment."""
    return StorageSpec.model_validate(
        {
            "root": f"s3://{TABLES_BUCKET}",
            "endpoint": endpoint,
            "region": address.region,
            "path_style": True,
            "access_key": "env:CONTRACT_TABLES_ACCESS_KEY",
            "secret_key": "env:CONTRACT_TABLES_SECRET_KEY",
        }
    )


#: The server of each kind of source.
HARNESSES: Mapping[str, type[SourceHarness]] = {
    harness.kind: harness for harness in (NotifiedHarness, ListedHarness, KafkaHarness, KinesisHarness, DeltaHarness)
}
