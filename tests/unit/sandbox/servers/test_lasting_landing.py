"""The landing server with a store and a journal: sent objects survive a kill of its process and arrive once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import boto3
import pytest
from botocore.exceptions import ClientError

from deltaworks.specs.catalog import PROJECT_ROOT
from sandbox.servers.durable_objects import DurableObjects
from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from sandbox.servers.landing import LAKE_BUCKET, LANDING_BUCKET, is_wired, landing_client, queue_url
from sandbox.servers.landing_journal import Announcement, LandingJournal
from sandbox.servers.object_store import ObjectStoreAddress, free_port
from sandbox.stack.ports import is_free
from tests.moto_server import running_moto
from tests.waiting import eventually

KEYS = {"access_key": "AKIATEST", "secret_key": "secret"}
#: The middle of the keys that shards share out.
HALF = str(1 << 127)


class Landing:
    """A landing server as a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, store: str) -> None:
        self.journal = folder / "journal.db"
        self._log = folder / "requests.log"
        self._output = folder / "output"
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.store = store
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        keys = {"DELTAWORKS_AWS_ACCESS_KEY": KEYS["access_key"], "DELTAWORKS_AWS_SECRET_KEY": KEYS["secret_key"]}
        keys |= {
            "PYTHONPATH": str(PROJECT_ROOT / "include"),
            "DELTAWORKS_LAKE_ACCESS_KEY": "store",
            "DELTAWORKS_LAKE_SECRET_KEY": "of the store",
        }
        command = [sys.executable, "-m", "sandbox.servers.moto_server", "--port", str(self._port)]
        command += ["--request-log", str(self._log), "--journal", str(self.journal), "--store", self.store]
        with self._output.open("a") as output:
            self._process = subprocess.Popen(command, env=os.environ | keys, stdout=output, stderr=output)
        eventually(self._serves, "the landing side is wired", seconds=600)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._output.read_text()
        return not is_free(self._port) and is_wired(endpoint=self.endpoint, **KEYS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def client(self, service: str) -> Any:
        return landing_client(service, endpoint=self.endpoint, **KEYS)

    def put(self, key: str, body: bytes = b"{}") -> None:
        self.client("s3").put_object(Bucket=LANDING_BUCKET, Key=key, Body=body)

    def receive(self, *, delete: bool, queue: str | None = None) -> list[str]:
        """The bodies that are there to receive."""
        sqs, url, bodies = self.client("sqs"), queue or queue_url(self.endpoint), []
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                bodies.append(message["Body"])
                if delete:
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return bodies

    def announced(self, *, delete: bool = True) -> list[str]:
        """The keys that are announced."""
        messages = [json.loads(json.loads(body)["Message"]) for body in self.receive(delete=delete)]
        keys = (record["s3"]["object"]["key"] for each in messages for record in each.get("Records", []))
        return sorted(unquote_plus(key) for key in keys)


@dataclass(frozen=True)
class Before:
    """What was declared and sent before the kill, as the server said it."""

    people: str
    dead: str
    topic: str
    subscription: str
    consumer: str
    stream: str
    records: list[tuple[bytes, str, str]]


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Another S3 server, in this process: it stands for the one whose objects are files."""
    with running_moto() as address:
        yield address


@pytest.fixture(scope="module")
def in_store(store: str) -> Any:
    session: Any = boto3.session.Session()
    keys = {"aws_access_key_id": "store", "aws_secret_access_key": "s"}
    client = session.client("s3", endpoint_url=store, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=LANDING_BUCKET)
    return client


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Landing]:
    server = Landing(tmp_path_factory.mktemp("landing"), store)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def before(server: Landing, in_store: Any) -> Before:
    """Everything is declared and sent once, then the server is killed and started again."""
    server.announced()
    server.put("games/received.json")
    assert server.announced() == ["games/received.json"]
    server.put("games/a b.json", b"kept")
    server.put("games/held.json")
    assert server.announced(delete=False) == ["games/a b.json", "games/held.json"]
    said = Before(**_people(server), **_games(server))
    _declare_buckets(server)
    server.kill()
    # The process may end between an object's arrival and its announcement, or before it arrives.
    in_store.put_object(Bucket=LANDING_BUCKET, Key="games/cut off", Body=b"{}")
    journal = LandingJournal(server.journal)
    for key in ("games/cut%20off", "games/never-arrived"):
        journal.add_pending(LANDING_BUCKET, key, "s3:ObjectCreated:Put")
    server.start()
    eventually(lambda: not journal.pending(), "everything promised is announced")
    journal.close()
    return said


@pytest.fixture
def landing(server: Landing, before: Before) -> Landing:
    """The server after the kill."""
    return server


def _people(server: Landing) -> dict[str, Any]:
    """A topic that tells a queue what is raised, and a queue for what that one does not get rid of."""
    sqs, sns = server.client("sqs"), server.client("sns")
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    people = sqs.create_queue(QueueName="people", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=people, Attributes={"RedrivePolicy": redrive})
    sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName="gone")["QueueUrl"])
    topic = sns.create_topic(Name="alerts")["TopicArn"]
    subscription = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=arn.replace(":dead", ":people"),
        Attributes={"RawMessageDelivery": "true", "FilterPolicy": json.dumps({"kind": ["raised"]})},
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    sqs.send_message(QueueUrl=people, MessageBody="hello", MessageAttributes=_attribute("raised"))
    return {"people": people, "dead": dead, "topic": topic, "subscription": subscription}


def _attribute(value: str) -> dict[str, Any]:
    return {"kind": {"DataType": "String", "StringValue": value}}


def _games(server: Landing) -> dict[str, Any]:
    """A stream whose shard was split, with a record before and one after, and a consumer."""
    kinesis = server.client("kinesis")
    kinesis.create_stream(StreamName="games", ShardCount=1)
    first = kinesis.put_record(StreamName="games", PartitionKey="a", Data=b"\x00first")
    kinesis.split_shard(StreamName="games", ShardToSplit=first["ShardId"], NewStartingHashKey=HALF)
    stream = kinesis.describe_stream_summary(StreamName="games")["StreamDescriptionSummary"]["StreamARN"]
    consumer = kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="reader")["Consumer"]["ConsumerARN"]
    kinesis.put_record(StreamName="games", PartitionKey="a", ExplicitHashKey=HALF, Data=b"second")
    return {"stream": stream, "consumer": consumer, "records": _records(kinesis)}


def _records(kinesis: Any) -> list[tuple[bytes, str, str]]:
    """Data, number and shard of every record in the stream."""
    records = []
    for shard in kinesis.list_shards(StreamName="games")["Shards"]:
        place = {"StreamName": "games", "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        answer = kinesis.get_records(ShardIterator=kinesis.get_shard_iterator(**place)["ShardIterator"])
        records += [(record["Data"], record["SequenceNumber"], shard["ShardId"]) for record in answer["Records"]]
    return records


def _declare_buckets(server: Landing) -> None:
    s3 = server.client("s3")
    s3.create_bucket(Bucket="archive")
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 7}}
    s3.put_bucket_lifecycle_configuration(Bucket=LANDING_BUCKET, LifecycleConfiguration={"Rules": [rule]})


def test_what_was_not_received_is_there_once_after_a_kill_and_what_was_is_not(landing: Landing, in_store: Any) -> None:
    assert landing.announced() == ["games/a b.json", "games/cut off", "games/held.json"]
    assert landing.announced() == []
    assert landing.client("s3").get_object(Bucket=LANDING_BUCKET, Key="games/a b.json")["Body"].read() == b"kept"
    assert in_store.get_object(Bucket=LANDING_BUCKET, Key="games/a b.json")["Body"].read() == b"kept"


def test_objects_are_listed_copied_deleted_and_refused_by_the_store(landing: Landing, in_store: Any) -> None:
    s3 = landing.client("s3")
    landing.put("listed/one")
    s3.copy_object(Bucket=LANDING_BUCKET, Key="listed/two", CopySource={"Bucket": LANDING_BUCKET, "Key": "listed/one"})
    s3.delete_object(Bucket=LANDING_BUCKET, Key="listed/one")

    listed = s3.list_objects_v2(Bucket=LANDING_BUCKET, Prefix="listed/")["Contents"]
    assert [item["Key"] for item in listed] == ["listed/two"]
    assert landing.announced() == ["listed/one", "listed/two"]
    etag = in_store.head_object(Bucket=LANDING_BUCKET, Key="listed/two")["ETag"]
    assert s3.get_object(Bucket=LANDING_BUCKET, Key="listed/two", IfMatch=etag)["ETag"] == etag
    with pytest.raises(ClientError, match=r"PreconditionFailed|412"):
        s3.get_object(Bucket=LANDING_BUCKET, Key="listed/two", IfMatch='"another"')
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket=LANDING_BUCKET, Key="listed/one")


def test_a_large_object_in_parts_and_a_body_in_chunks_arrive_whole(landing: Landing, in_store: Any) -> None:
    s3, whole = landing.client("s3"), {"Bucket": LANDING_BUCKET, "Key": "parts"}
    upload = whole | {"UploadId": s3.create_multipart_upload(**whole)["UploadId"]}
    bodies = (b"a" * (5 << 20), b"end")
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
        for number, body in enumerate(bodies, start=1)
    ]
    assert landing.announced() == []
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    # A body that cannot be read twice is sent in chunks with a trailer.
    s3.put_object(Bucket=LANDING_BUCKET, Key="chunks", Body=_Once(b"in chunks"), ChecksumAlgorithm="CRC32")

    assert landing.announced() == ["chunks", "parts"]
    assert in_store.get_object(**whole)["Body"].read() == b"".join(bodies)
    assert in_store.get_object(Bucket=LANDING_BUCKET, Key="chunks")["Body"].read() == b"in chunks"


class _Once(io.BytesIO):
    """A body as a file is one."""


def test_queues_and_topics_are_there_with_what_they_were_sent(landing: Landing, before: Before) -> None:
    sqs, sns = landing.client("sqs"), landing.client("sns")

    names = {url.rsplit("/", 1)[1] for url in sqs.list_queues()["QueueUrls"]}
    assert {"dead", "people"} <= names
    assert "gone" not in names
    subscriptions = sns.list_subscriptions_by_topic(TopicArn=before.topic)["Subscriptions"]
    assert [item["SubscriptionArn"] for item in subscriptions] == [before.subscription]
    for kind in ("raised", "heartbeat"):
        sns.publish(TopicArn=before.topic, Message=kind, MessageAttributes=_attribute(kind))
    options = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    received = sqs.receive_message(QueueUrl=before.people, **options)["Messages"]
    assert [message["Body"] for message in received] == ["hello", "raised"]
    assert received[0]["MessageAttributes"]["kind"]["StringValue"] == "raised"
    # Each was received once, which is all that this queue allows.
    assert landing.receive(delete=False, queue=before.people) == []
    assert landing.receive(delete=True, queue=before.dead) == ["hello", "raised"]


def test_records_stay_in_their_shards_and_new_ones_come_behind_them(landing: Landing, before: Before) -> None:
    kinesis = landing.client("kinesis")

    assert _records(kinesis) == before.records
    assert [record[0] for record in before.records] == [b"\x00first", b"second"]
    consumers = kinesis.list_stream_consumers(StreamARN=before.stream)["Consumers"]
    assert [item["ConsumerARN"] for item in consumers] == [before.consumer]
    third = kinesis.put_record(StreamName="games", PartitionKey="a", ExplicitHashKey=HALF, Data=b"third")
    place = {"StreamName": "games", "ShardId": third["ShardId"], "ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
    after = kinesis.get_shard_iterator(**place, StartingSequenceNumber=before.records[1][1])["ShardIterator"]
    assert [record["Data"] for record in kinesis.get_records(ShardIterator=after)["Records"]] == [b"third"]


def test_a_bucket_of_ones_own_and_settings_are_there(landing: Landing, in_store: Any) -> None:
    s3 = landing.client("s3")

    s3.head_bucket(Bucket="archive")
    s3.put_object(Bucket="archive", Key="kept", Body=b"kept")
    assert in_store.get_object(Bucket="archive", Key="kept")["Body"].read() == b"kept"
    rules = s3.get_bucket_lifecycle_configuration(Bucket=LANDING_BUCKET)["Rules"]
    assert [item["Expiration"]["Days"] for item in rules] == [7]


def asked(objects: DurableObjects, method: str, address: str, **headers: str) -> tuple[str, bytes]:
    """Status and content of the answer to a request that is signed, with whatever keys."""
    said: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": address,
        "HTTP_AUTHORIZATION": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request",
        "CONTENT_LENGTH": "2",
        "wsgi.input": io.BytesIO(b"{}"),
        **headers,
    }
    content = b"".join(objects(environ, lambda status, _headers: said.append(status)))
    return said[0], content


@pytest.fixture
def without_store(tmp_path: Path, in_store: Any) -> DurableObjects:
    """Objects whose store does not answer; moto, in this process, knows the landing bucket."""
    away = ObjectStoreAddress(f"http://127.0.0.1:{free_port()}", "store", "secret")
    journal = LandingJournal(tmp_path / "journal.db")
    return DurableObjects(lambda _environ, respond: respond("200 OK", []) or [], store=away, journal=journal)


def test_a_store_that_is_away_is_said_and_the_object_is_looked_for_at_the_next_start(
    without_store: DurableObjects, tmp_path: Path
) -> None:
    status, content = asked(without_store, "PUT", f"/{LANDING_BUCKET}/games/one")

    assert status == "503 Slow Down"
    assert b"SlowDown" in content
    # Whether the object arrived is not known.
    assert [item.key for item in LandingJournal(tmp_path / "journal.db").pending()] == ["games/one"]


class Publishing(DurableObjects):
    """Notes what it publishes, and asks the store for something else before it is done with that."""

    def __init__(self, store: str, journal: LandingJournal) -> None:
        address = ObjectStoreAddress(store, "store", "secret")
        super().__init__(lambda _environ, respond: respond("200 OK", []) or [], store=address, journal=journal)
        self.published: list[str] = []

    def _publish(self, item: Announcement, *, size: int, etag: str) -> None:
        self._request_store("HEAD", f"/{item.bucket}/{item.key}", {}, b"").drain_conn()
        self.published.append(item.key)


def test_an_object_that_the_store_has_is_announced_though_its_reply_was_lost(
    store: str, in_store: Any, tmp_path: Path
) -> None:
    journal = LandingJournal(tmp_path / "journal.db")
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path=".*/games/unseen", times=1)
    with running_fault_proxy(store, faults=[lost]) as proxy:
        objects = Publishing(proxy.endpoint, journal)
        status, _ = asked(objects, "PUT", f"/{LANDING_BUCKET}/games/unseen")
        assert status == "503 Slow Down"
        assert in_store.head_object(Bucket=LANDING_BUCKET, Key="games/unseen")["ContentLength"] == 2
        eventually(lambda: objects.published == ["games/unseen"], "it is announced without being put again")
        eventually(lambda: journal.pending() == [], "nothing is left to be looked for")


class KeepsConnections(BaseHTTPRequestHandler):
    """A store that has whatever is asked for, and keeps its connections open as servers in Java do."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"{}")

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def test_an_announcement_leaves_a_connection_that_the_next_request_can_use(in_store: Any, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), KeepsConnections) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        objects = Publishing(f"http://127.0.0.1:{server.server_port}", LandingJournal(tmp_path / "journal.db"))
        status, _ = asked(objects, "PUT", f"/{LANDING_BUCKET}/games/one")
        objects.close()
        server.shutdown()
    assert (status, objects.published) == ("200 OK", ["games/one"])


@pytest.mark.parametrize(
    "address",
    [
        f"/{LAKE_BUCKET}",
        f"/{LAKE_BUCKET}?list-type=2",
        f"//{LAKE_BUCKET}/tables/games",
        f"/%64{LAKE_BUCKET[1:]}/tables/games",
        f"/{LANDING_BUCKET}/../{LAKE_BUCKET}/tables/games",
        f"/{LANDING_BUCKET}/%2e%2e%2f{LAKE_BUCKET}/tables/games",
        f"/./{LAKE_BUCKET}/tables/games",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_lake_in_the_same_store_is_reached_by_no_way_through_the_landing_side(
    without_store: DurableObjects, method: str, address: str
) -> None:
    assert asked(without_store, method, address)[0] == "403 Forbidden"


def test_nothing_of_the_lake_is_copied_out_of_it(without_store: DurableObjects) -> None:
    source = {"HTTP_X_AMZ_COPY_SOURCE": f"/{LAKE_BUCKET}/tables/games"}

    assert asked(without_store, "PUT", f"/{LANDING_BUCKET}/games/one", **source)[0] == "403 Forbidden"
