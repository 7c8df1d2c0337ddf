"""`feed`: the number of changed rows per second that a feed delivers to a queue.

Deltaworks: a feed of a gold table whose partition was rebuilt. It compares the table with the delivered version, writes
messages with ids, sends them, and records its progress after every part.

Baseline: the same messages, created beforehand and sent in batches of ten by boto3 from the same number of threads,
without recording anything. This is the maximum throughput of the queue and its client.

The queue is a moto server in another process that keeps only the newest messages, as if a consumer emptied it. Real SQS
handles more requests in parallel and takes longer for each.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure
from benchmarks.relay import running_server

if TYPE_CHECKING:
    from deltaworks.specs.storage import AwsSpec, StorageSpec

_THREADS = 4
_BATCH = 10
_MIN_ROWS = 2_000


def run(options: Options) -> list[Result]:
    """Measures the feed and the plain batches with the same number of rows."""
    rows = min(20_000, max(_MIN_ROWS, options.events // 100))
    with running_server("benchmarks.queue_server") as endpoint:
        server = _Server(endpoint, rows)
        comparison = Comparison(
            metric="vs_boto3_batches",
            ours=Side("feed", server.feed),
            other=Side("boto3_batches", server.batches),
            sizes={"rows": rows, "threads": _THREADS},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@dataclass
class _Server:
    endpoint: str
    rows: int

    def feed(self, clock: Clock) -> None:
        """Runs a feed once for a table on local disk in which all rows have changed."""
        from benchmarks.storages import local_disk
        from deltaworks.control.objects import open_objects
        from deltaworks.feeds.process import Feed
        from deltaworks.feeds.sinks import open_sink
        from deltaworks.specs.catalog import Catalog, project_root
        from deltaworks.specs.environment import EnvironmentSpec

        messaging, url, _ = self._queue()
        with local_disk().new_root() as storage:
            spec = _declared(url)
            environment = EnvironmentSpec(environment="bench", lake=storage, landing=storage, messaging=messaging)
            catalog = Catalog(environment, {}, {spec.pipeline: spec}, project_root())
            sink = open_sink(spec.feeds[0].to, messaging)
            feed = Feed(catalog, spec, spec.feeds[0], open_objects(storage), sink)
            _rebuild(storage, self.rows, value=0)
            feed.run_once()
            _rebuild(storage, self.rows, value=1)
            started = time.perf_counter()
            record = feed.run_once()
            clock.seconds = time.perf_counter() - started
            sink.close()
        if record.changes != self.rows:
            raise RuntimeError(f"{record.changes} changes were delivered, not {self.rows}")
        clock.record(rows_per_second=self.rows / clock.seconds)

    def batches(self, clock: Clock) -> None:
        """Sends the same message bodies in batches without recording progress."""
        _, url, client = self._queue()
        bodies = [_body(number) for number in range(self.rows)]
        parts = [bodies[at : at + _BATCH] for at in range(0, len(bodies), _BATCH)]

        def send(part: list[str]) -> int:
            entries = [{"Id": f"{number}", "MessageBody": body} for number, body in enumerate(part)]
            return len(client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"])

        started = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            sent = sum(pool.map(send, parts))
        clock.seconds = time.perf_counter() - started
        if sent != self.rows:
            raise RuntimeError(f"{sent} messages were sent, not {self.rows}")
        clock.record(rows_per_second=self.rows / clock.seconds)

    def _queue(self) -> tuple[AwsSpec, str, Any]:
        import boto3
        from botocore.config import Config

        from deltaworks.specs.storage import AwsSpec

        os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
        spec = AwsSpec(endpoint=self.endpoint)
        config = Config(max_pool_connections=2 * _THREADS)
        client: Any = boto3.session.Session().client("sqs", config=config, **spec.boto3_options())
        return spec, client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"], client


def _declared(url: str) -> Any:
    from deltaworks.specs.pipeline import PipelineSpec

    return PipelineSpec.model_validate(
        {
            "pipeline": "bench",
            "description": "",
            "owner": "bench",
            "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
            "event": {"name": {"path": "kind"}, "time": {"path": "at", "unit": "iso8601"}, "id": ["id"]},
            "tables": [
                {"name": "rows", "catch_all": True, "columns": [{"name": "device", "path": "device", "type": "string"}]}
            ],
            "gold": {"tables": [{"name": "totals", "sql": "t.sql", "reads": ["rows"], "partition_by": "event_date"}]},
            "feeds": [
                {
                    "name": "totals",
                    "reads": "totals",
                    "key": ["event_date", "device"],
                    "from": "now",
                    "to": {"kind": "sqs", "queue_url": url},
                }
            ],
        }
    )


def _rebuild(storage: StorageSpec, rows: int, *, value: int) -> None:
    """Replaces the table's only partition, as a gold build does."""
    import datetime as dt

    import pyarrow as pa
    from deltalake import write_deltalake

    from deltaworks.control import paths

    table = pa.table(
        {
            "event_date": pa.array([dt.date(2026, 3, 1)] * rows, pa.date32()),
            "device": [f"device-{number:09}" for number in range(rows)],
            "events": pa.array([value] * rows, pa.int64()),
            "seconds": pa.array([value * 1.5] * rows, pa.float64()),
        }
    )
    write_deltalake(storage.uri(paths.table("bench", "totals")), table, mode="overwrite", partition_by=["event_date"])


def _body(number: int) -> str:
    """Returns a message body as long as those of the feed."""
    key = {"event_date": "2026-03-01", "device": f"device-{number:09}"}
    row = {**key, "events": 1, "seconds": 1.5}
    named = {"feed": "bench.totals", "id": f"{number:032x}", "number": 1, "op": "upsert"}
    return json.dumps({**named, "key": key, "row": row, "at": "2026-03-01T12:00:00.000+00:00"})


BENCHMARK = Benchmark(
    name="feed",
    summary="changed rows per second sent to a queue, against plain boto3 batches that record nothing",
    run=run,
    tiny=TinySize(constants={"_MIN_ROWS": 100}),
)
