"""The handler: an AWS Lambda behind API Gateway, and what the local endpoint calls.

As a Lambda it is `collector.handler.handle`, with the name of the stream in COLLECTOR_STREAM.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from collector.records import outgoing
from collector.stream_writer import RecordsRefusedError, StreamWriter


class Collector:
    """Stamps events and puts them into the stream."""

    def __init__(
        self, writer: StreamWriter, *, clock: Callable[[], float] = time.time, keys: random.Random | None = None
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._keys = keys or random.SystemRandom()

    def take(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Put the events of these requests into the stream; API Gateway's answer.

        503 means that some are not in the stream, and the sender has to send them again: all of them, since it cannot
        tell which. Events carry ids, so what comes twice counts once.
        """
        at = int(self._clock())
        try:
            self._writer.put([outgoing(request, at=at, keys=self._keys) for request in requests])
        except RecordsRefusedError as error:
            said = {"refused": error.count, "of": len(requests)}
            return {"statusCode": 503, "headers": {"Retry-After": "5"}, "body": json.dumps(said)}
        return {"statusCode": 200, "body": json.dumps({"accepted": len(requests)})}


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """The Lambda's entry point: one request of API Gateway."""
    return _collector().take([event])


@cache
def _collector() -> Collector:
    import boto3

    # A Lambda's region and role come from where it runs.
    return Collector(StreamWriter(boto3.client("kinesis"), os.environ["COLLECTOR_STREAM"]))
