"""Sends events through published ports, like producers on the host, and reads what the servers hold of them.

Addresses and keys come from environment variables with the project's names. The result is printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from confluent_kafka import Consumer, TopicPartition

from generator.delivery import publish
from generator.engagement import EngagementRecord, engagement_records
from generator.engagement_settings import EngagementSettings
from generator.replay import replay_lines
from sandbox.demo.topic_sink import topic_sink
from sandbox.servers.kafka_broker import BrokerAddress
from sandbox.servers.landing import LANDING_BUCKET, landing_client, queue_url

_ENGAGEMENT = EngagementSettings(activities=400, organisations=4, days=3, seed=11)


def engagement() -> list[EngagementRecord]:
    """Returns the records that are sent, which the seed determines."""
    return list(engagement_records(_ENGAGEMENT))


def send_edits(path: str) -> int:
    """Lands every line of the file; returns the number of objects."""
    s3 = _client("s3")
    lands = publish(
        replay_lines(Path(path)), lambda key, body: s3.put_object(Bucket=LANDING_BUCKET, Key=key, Body=body)
    )
    return lands.objects


def send_engagement() -> int:
    """Sends the records to the broker; returns their number."""
    records = engagement()
    with topic_sink(_broker()) as send:
        for record in records:
            send(record.topic, record.key, record.value)
    return len(records)


def receive_announced() -> list[str]:
    """Receives all notifications of the landing queue, as the relay does; returns the keys of their objects."""
    sqs, url, keys = _client("sqs"), queue_url(os.environ["DELTAWORKS_AWS_ENDPOINT"]), []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            event = json.loads(json.loads(message["Body"])["Message"])
            keys += [unquote_plus(record["s3"]["object"]["key"]) for record in event.get("Records", [])]
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return keys


def read_sent() -> dict[str, Any]:
    """Returns the landed objects with their sizes, and the end of each topic."""
    objects = _client("s3").list_objects_v2(Bucket=LANDING_BUCKET).get("Contents", [])
    consumer = Consumer({**_broker().client_options(), "group.id": "producers"})
    topics = {name: topic for name, topic in consumer.list_topics(timeout=30).topics.items() if name[0] != "_"}
    ends = {
        name: sum(consumer.get_watermark_offsets(TopicPartition(name, number))[1] for number in topic.partitions)
        for name, topic in topics.items()
    }
    return {"objects": {each["Key"]: each["Size"] for each in objects}, "records": ends}


def _broker() -> BrokerAddress:
    return BrokerAddress(os.environ["DELTAWORKS_KAFKA_BOOTSTRAP"])


def _client(service: str) -> Any:
    names = ("endpoint", "access_key", "secret_key")
    return landing_client(service, **{name: os.environ[f"DELTAWORKS_AWS_{name.upper()}"] for name in names})


COMMANDS = {
    "edits": send_edits,
    "engagement": send_engagement,
    "sent": read_sent,
    "announced": receive_announced,
}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
