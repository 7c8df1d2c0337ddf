"""The collector as an AWS Lambda behind API Gateway: the same door, and no spool. It answers once the sink has it.

Its entry point is `collector.handler.handle`; COLLECTOR names the file in include/collectors. REST APIs send one form
of event, HTTP APIs and function URLs another; a body that is no text comes in Base64 in both.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from collector.admission import cors_headers
from collector.door import Admitted, Door, Head, Taken, new_request_id
from collector.drain import LandingWay, Way
from collector.packing import SpooledEvent, packed, planned
from collector.sinks import RecordSink, SinkBusyError
from collector.verdicts import Answer, refusal
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
#: Tries of what a sink did not take before the sender is asked to send it again.
_TRIES = 3
_WAIT_SECONDS = 0.2


class Gateway:
    """Takes requests of API Gateway. Used by one thread, as a Lambda's instance is.

    What was sent and not answered comes again and may be there twice: events carry ids, by which gold counts each once.
    Numbers of events have gaps here, since an instance ends without a word, so nobody looks for lost ones.
    """

    def __init__(
        self,
        spec: CollectorSpec,
        ways: Mapping[str, Way],
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._id = os.urandom(16).hex()
        self._names = dict(enumerate(spec.sources))
        numbers = {name: number for number, name in self._names.items()}
        self._door = Door(spec, collector=self._id, numbers=numbers, clock=clock)
        self._ways = ways
        self._sinks: dict[str, RecordSink] = {}
        self._seq = itertools.count(1)
        self._clock = clock
        self._sleep = sleep

    def handle(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """API Gateway's answer to one of its requests."""
        head = head_of(event)
        try:
            answer = self._answer(head, event)
        except Exception:
            log.exception("a request failed")
            answer = refusal("internal", new_request_id())
        answer = self._door.with_cors(head, answer)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
        return {"statusCode": answer.status, "headers": headers, "body": answer.body.decode(), "isBase64Encoded": False}

    def _answer(self, head: Head, event: Mapping[str, Any]) -> Answer:
        request_id = new_request_id()
        if head.method == "OPTIONS":
            origin = head.headers.get(b"origin", b"")
            if origin and self._door.keys.anyone_takes_origin(origin.decode("latin-1")):
                return Answer(200, b"", cors_headers(origin, preflight=True)[3:])
            return refusal("origin", request_id)
        admitted = self._door.admit(head, request_id)
        if isinstance(admitted, Answer):
            return admitted
        return self._deliver(admitted, body_of(event), request_id)

    def _deliver(self, admitted: Admitted, body: bytes, request_id: str) -> Answer:
        taken = self._door.read(admitted, body)
        if isinstance(taken, Answer):
            return taken
        if not taken.entries:
            return taken.answer
        events = [self._numbered(entry.parts) for entry in taken.entries]
        return taken.answer if self._sent(taken, events) else refusal("sink", request_id)

    def _numbered(self, parts: tuple[bytes, ...]) -> SpooledEvent:
        seq = next(self._seq)
        return SpooledEvent(seq, (b"%d" % seq).join(parts))

    def _sent(self, taken: Taken, events: Sequence[SpooledEvent]) -> bool:
        """Whether the sink has all of them."""
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(_WAIT_SECONDS * 2**attempt)
            try:
                self._send(taken.source, events)
            except SinkBusyError as busy:
                events = busy.left
                log.warning("%s: %s", taken.source, busy)
            except Exception:
                log.exception("%s: the sink failed", taken.source)
            else:
                return True
        return False

    def _send(self, source: str, events: Sequence[SpooledEvent]) -> None:
        way = self._ways[source]
        if isinstance(way, LandingWay):
            at = datetime.fromtimestamp(self._clock(), UTC)
            plan = planned(way.prefix, collector=self._id, first=events[0].seq, last=events[-1].seq, at=at)
            way.sink.put(packed(plan, events))
            return
        if source not in self._sinks:
            self._sinks[source] = way.open_sink()
        for aside in self._sinks[source].send(events):
            # Nothing is kept here, so the log is where it is.
            log.error("%s: the sink can never take %r: %s", source, aside.event.payload[:1000], aside.reason)


def head_of(event: Mapping[str, Any]) -> Head:
    """The request without its body, of either form of event."""
    context = event.get("requestContext") or {}
    headers = {
        str(name).lower().encode("latin-1", "replace"): str(value).encode("latin-1", "replace")
        for name, value in (event.get("headers") or {}).items()
    }
    if "http" in context:  # form 2.0: HTTP APIs and function URLs
        http = context["http"]
        path = _without_stage(str(event.get("rawPath") or http.get("path", "/")), str(context.get("stage", "")))
        query = str(event.get("rawQueryString") or "")
        return Head(str(http["method"]), path, query.encode(), headers, str(http.get("sourceIp", "")))
    parameters = event.get("multiValueQueryStringParameters") or {}
    query = urlencode(parameters or event.get("queryStringParameters") or {}, doseq=True)
    peer = str((context.get("identity") or {}).get("sourceIp", ""))
    return Head(str(event.get("httpMethod", "POST")), str(event.get("path", "/")), query.encode(), headers, peer)


def body_of(event: Mapping[str, Any]) -> bytes:
    """The body as the client sent it."""
    body = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return str(body).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return str(body).encode("utf-8", "surrogatepass")


def _without_stage(path: str, stage: str) -> str:
    """HTTP APIs put the name of a stage before the path, but for the stage `$default`."""
    return path.removeprefix(f"/{stage}") if stage and path.startswith(f"/{stage}/") else path


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """The Lambda's entry point: one request of API Gateway."""
    return _gateway().handle(event)


@cache
def _gateway() -> Gateway:
    from collector.sinks.opening import open_ways
    from deltaworks.specs.project import load_catalog

    root = Path(os.environ.get("LAMBDA_TASK_ROOT", Path.cwd()))
    catalog = load_catalog(root=root, tolerant=True)
    spec = catalog.collector(os.environ.get("COLLECTOR") or next(iter(catalog.collectors), "edge"))
    return Gateway(spec, open_ways(spec, catalog))
