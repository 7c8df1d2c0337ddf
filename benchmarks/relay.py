"""`relay`: the number of messages per second that a relay moves from a queue into its log.

Deltaworks: a relay that runs until the queue is empty. It receives and parses messages, compares them with all known
events, commits them to the file event log, and only then deletes the messages.

Baseline: a consumer of the same queue with the same number of threads, which receives ten messages at a time, deletes
them and stores nothing. This is the maximum throughput of the queue and its client.

The queue is a moto server in another process. Real SQS handles more requests in parallel and takes longer for each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from deltaworks.sources.objects.relay.queue import NotificationQueue

#: The server scans all messages of a queue on each request; with more messages, the benchmark would measure this scan.
_MAX_MESSAGES = 500
_THREADS = 4


def run(options: Options) -> list[Result]:
    """Measures both implementations on queues with the same number of messages."""
    messages = min(_MAX_MESSAGES, max(100, options.events // 2_000))
    with running_server() as endpoint:
        server = _Server(endpoint, messages)
        comparison = Comparison(
            metric="relay_vs_bare_consumer",
            ours=Side("relay", server.relay),
            other=Side("bare_consumer", server.bare),
            sizes={"messages": messages, "threads": _THREADS},
        )
        return measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)


@contextmanager
def running_server(module: str = "moto.server") -> Iterator[str]:
    """Runs a moto server in another process and yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", module, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with suppress(OSError):
                urllib.request.urlopen(endpoint, timeout=1).close()
                break
            time.sleep(0.1)
        yield endpoint
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class _Server:
    endpoint: str
    messages: int

    def relay(self, clock: Clock) -> None:
        """Measures a relay from its start until all messages are deleted."""
        from benchmarks.storages import local_disk
        from deltaworks.sources.objects.relay.relay import Relay
        from deltaworks.specs.relay import RelaySpec

        queue, url = self._filled()
        spec = RelaySpec(relay="bench", queue_url=url, buckets=("landing",), receive_threads=_THREADS)
        with local_disk().new_root() as storage:
            relay = Relay(spec, lake=storage, queue=queue, until_drained=True)
            started = time.perf_counter()
            thread = ThreadPoolExecutor(1)
            running = thread.submit(relay.run)
            # A relay waits before it considers a queue empty; this wait is not measured.
            while relay.counts.deleted < self.messages and not running.done():
                time.sleep(0.01)
            clock.seconds = time.perf_counter() - started
            counts = running.result()
        # A send that was retried after a lost response leaves a message twice.
        if counts.events != self.messages or counts.deleted < self.messages:
            raise RuntimeError(f"the relay did not move what was sent: {counts}")
        clock.record(messages_per_second=self.messages / clock.seconds, appends=counts.appends)

    def bare(self, clock: Clock) -> None:
        """Measures a consumer that only receives and deletes messages."""
        queue, _ = self._filled()

        def consume(_thread: int) -> int:
            taken = 0
            while messages := queue.receive():
                taken += queue.delete(messages).succeeded
            return taken

        started = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            taken = sum(pool.map(consume, range(_THREADS)))
        # The last receive calls wait one second on the empty queue.
        clock.seconds = time.perf_counter() - started - 1
        if taken < self.messages:
            raise RuntimeError(f"{taken} messages were consumed, not {self.messages}")
        clock.record(messages_per_second=self.messages / clock.seconds)

    def _filled(self) -> tuple[NotificationQueue, str]:
        """Creates a queue and sends the messages to it."""
        import boto3

        from deltaworks.sources.objects.relay.queue import NotificationQueue
        from deltaworks.specs.storage import AwsSpec

        os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
        spec = AwsSpec(endpoint=self.endpoint)
        client: Any = boto3.session.Session().client("sqs", **spec.boto3_options())
        url = client.create_queue(QueueName=uuid.uuid4().hex, Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        queue = NotificationQueue(spec, url, wait_seconds=1)
        parts = [[_body(number) for number in range(at, self.messages, 4)] for at in range(4)]
        with ThreadPoolExecutor(4) as pool:
            if any(pool.map(queue.send, parts)):
                raise RuntimeError("the queue did not accept all messages")
        return queue, url


def _body(number: int) -> str:
    landed = {"key": f"events/2026/01/01/{number:09}.json.gz", "size": 100_000, "eTag": f"{number:032x}"}
    record = {
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "s3": {"bucket": {"name": "landing"}, "object": landed | {"sequencer": f"{number:016x}"}},
    }
    return json.dumps({"Records": [record]})


BENCHMARK = Benchmark(
    name="relay",
    summary="messages per second from a queue into the file event log, against a consumer that stores nothing",
    run=run,
    tiny=TinySize(),
)
