"""Topics on a real broker, and a pipeline that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from deltaworks.engine.runner import IngestRun, RunResult
from deltaworks.operations.stream_parts import STREAM_PARTS
from sandbox.servers.kafka_broker import RunningBroker
from tests.batch_points import call_at_points
from tests.spark.conftest import Project

PIPELINE = """\
pipeline: shop
description: orders
owner: tests
source: {source}
event: {{name: {{path: name}}, time: {{path: time, unit: epoch_seconds}}, id: [id]}}
tables:
  - name: orders
    when: {{name: order}}
    columns:
      - {{name: number, path: number, type: long, required: true}}
      - {{name: sent_by, path: _record.headers.sender, type: string}}
      - {{name: keyed, path: _record.key, type: string}}
  - name: removals
    when: {{_record.tombstone: true}}
    columns:
      - {{name: keyed, path: _record.key, type: string}}
stream: {{tasks_per_batch: 2, lease_ttl_seconds: 3}}
"""
RULES = "    rules: [{{name: bound, check: number > 5, on_fail: quarantine}}]\n"
ProjectOf = Callable[..., Project]


class Topic:
    """A topic of a test and the pipeline that reads it."""

    def __init__(self, broker: RunningBroker, name: str, partitions: int = 2) -> None:
        self.broker, self.name = broker, name
        self.admin = AdminClient(broker.address.client_options())
        if partitions:
            self.admin.create_topics([NewTopic(name, partitions)])[name].result()
        self.producer = Producer(broker.address.client_options())

    def send(self, numbers: Sequence[int], **options: Any) -> None:
        for number in numbers:
            self.raw(order(number), key=f"k{number % 5}", **options)
        self.producer.flush()

    def raw(self, value: bytes | None, **options: Any) -> None:
        self.producer.produce(self.name, value, **options)

    def source(self, **changes: Any) -> dict[str, Any]:
        return {"kind": "kafka", "bootstrap_servers": self.broker.address.bootstrap, "topics": [self.name]} | changes


def order(number: int) -> bytes:
    event = {"name": "order", "id": f"o{number}", "time": 1_700_000_000 + number, "number": number}
    return json.dumps(event).encode()


def run(spark: SparkSession, project: Project, fault: Callable[[str], None] = lambda point: None) -> RunResult:
    with call_at_points(fault):
        return IngestRun(spark, project.catalog, "shop", parts=STREAM_PARTS, available_now=True).run()


def numbers(project: Project) -> list[int]:
    return sorted(row["number"] for row in project.rows("shop", "orders"))
