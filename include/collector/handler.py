"""The handler: an AWS Lambda behind API Gateway, and what the local endpoint calls.

As a Lambda it is `collector.handler.handle`, with the name of the stream in COLLECTOR_STREAM.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from collector.records import outgoing
from collector.requests import events_of
from collector.stream_writer import Refusal, StreamWriter

_OK, _MULTI_STATUS, _BAD_REQUEST, _UNAVAILABLE = 200, 207, 400, 503
_RETRY_AFTER_SECONDS = 5


class Collector:
    """Stamps events and puts them into the stream."""

    def __init__(
        self, writer: StreamWriter, *, clock: Callable[[], float] = time.time, keys: random.Random | None = None
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._keys = keys or random.SystemRandom()

    def take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the events of a request into the stream; API Gateway's answer.

        Every event is judged by itself. `accepted` are in the stream. `refused` are not and never will be, with line,
        status and reason: there is no use in sending them again. `retry` are lines that the stream did not take this
        time.

        The status is 200 where all were accepted, 503 where some are to be sent again, 207 where some were refused, and
        their own status where all were. A sender that sends a request again as a whole does no harm: events carry ids,
        so what comes twice counts once.
        """
        events = events_of(request)
        at = int(self._clock())
        refusals = self._writer.put([outgoing(event.request, at=at, keys=self._keys) for event in events])
        return _answer(len(events), [(events[refusal.index].line, refusal) for refusal in refusals])


def _answer(count: int, refusals: list[tuple[int, Refusal]]) -> dict[str, Any]:
    retry = [line for line, refusal in refusals if refusal.status is None]
    refused = [
        {"line": line, "status": refusal.status, "reason": refusal.reason}
        for line, refusal in refusals
        if refusal.status is not None
    ]
    content: dict[str, Any] = {"accepted": count - len(refusals)}
    if refused:
        content["refused"] = refused
    if retry:
        content["retry"] = retry
        headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
        return {"statusCode": _UNAVAILABLE, "headers": headers, "body": json.dumps(content)}
    return {"statusCode": _status(count, refused), "body": json.dumps(content)}


def _status(count: int, refused: list[dict[str, Any]]) -> int:
    if not refused:
        return _OK
    if len(refused) < count:
        return _MULTI_STATUS
    statuses = {refusal["status"] for refusal in refused}
    return statuses.pop() if len(statuses) == 1 else _BAD_REQUEST


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """The Lambda's entry point: one request of API Gateway."""
    return _collector().take(event)


@cache
def _collector() -> Collector:
    import boto3

    # A Lambda's region and role come from where it runs.
    return Collector(StreamWriter(boto3.client("kinesis"), os.environ["COLLECTOR_STREAM"]))
