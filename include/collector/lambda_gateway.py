"""Runs the collector as an AWS Lambda behind API Gateway, without a spool: it responds after the sink has the events.

The entry point is `deltaworks.collector_host.aws_lambda.handle`, which opens sinks and keys. REST APIs send events in
format 1.0, HTTP APIs and function URLs in format 2.0; both encode binary bodies in Base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from collector.admission import cors_headers
from collector.drain import VAULT_SOURCE, Destination, LandingDestination
from collector.packing import PackedObject, SpooledEvent, pack, plan_object
from collector.request_handler import AdmittedRequest, RequestHandler, RequestHead, new_request_id
from collector.responses import Response, reject
from collector.sinks import RecordSink, SinkBusyError
from collector.sinks.vault import VaultObjects, VaultSink
from collector.stamps import SourceRedaction
from collector.submissions import Entry
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
#: Attempts per request before the sender has to retry.
_MAX_ATTEMPTS = 3
_WAIT_SECONDS = 0.2


class Gateway:
    """Handles requests of API Gateway. Not thread-safe, like a Lambda instance.

    A client retries an unanswered request, which may duplicate events; gold deduplicates them by their ids. Event
    numbers have gaps, because an instance may end at any time. So lost events cannot be detected by number, unlike with
    a spool.

    Args:
        redactions: redaction of each source with personal data.
        vault: stores sealed frames; required with `redactions`. Events are delivered only after their frame is stored.
        before_request: called before each request.
    """

    def __init__(
        self,
        spec: CollectorSpec,
        destinations: Mapping[str, Destination],
        *,
        redactions: Mapping[str, SourceRedaction] | None = None,
        vault: VaultObjects | None = None,
        before_request: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._collector_id = os.urandom(16).hex()
        self._names = dict(enumerate(spec.sources))
        numbers = {name: number for number, name in self._names.items()}
        self._handler = RequestHandler(
            spec, collector_id=self._collector_id, source_numbers=numbers, clock=clock, redactions=redactions
        )
        self._destinations = destinations
        self._vault = None if vault is None else VaultSink(vault, self._collector_id)
        self._before_request = before_request
        self._sinks: dict[str, RecordSink] = {}
        self._seq = itertools.count(1)
        self._clock = clock
        self._sleep = sleep

    def handle(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Returns API Gateway's response to one request."""
        head = parse_head(event)
        try:
            self._before_request()
            response = self._respond(head, event)
        except Exception:
            log.exception("a request failed")
            response = reject("internal", new_request_id())
        response = self._handler.with_cors(head, response)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        return {
            "statusCode": response.status,
            "headers": headers,
            "body": response.body.decode(),
            "isBase64Encoded": False,
        }

    def _respond(self, head: RequestHead, event: Mapping[str, Any]) -> Response:
        request_id = new_request_id()
        if head.method == "OPTIONS":
            origin = head.headers.get(b"origin", b"")
            if origin and self._handler.keys.is_known_origin(origin.decode("latin-1")):
                return Response(200, b"", cors_headers(origin, preflight=True)[3:])
            return reject("origin", request_id)
        request = self._handler.admit(head, request_id)
        if isinstance(request, Response):
            return request
        return self._deliver(request, decode_body(event), request_id)

    def _deliver(self, request: AdmittedRequest, body: bytes, request_id: str) -> Response:
        accepted = self._handler.read_events(request, body)
        if isinstance(accepted, Response):
            return accepted
        if not accepted.entries:
            return accepted.response
        if accepted.sealed is not None and not self._store_sealed(accepted.sealed):
            return reject("sink", request_id)
        events = [self._with_number(entry.parts) for entry in accepted.entries]
        return (
            accepted.response
            if self._send_with_retries(accepted.source, events, self._send_once)
            else reject("sink", request_id)
        )

    def _with_number(self, parts: tuple[bytes, ...]) -> SpooledEvent:
        seq = next(self._seq)
        return SpooledEvent(seq, (b"%d" % seq).join(parts))

    def _store_sealed(self, sealed: Entry) -> bool:
        """Stores a request's sealed frame (encrypted personal data) in the vault; returns whether that succeeded."""
        seq = next(self._seq)
        frame = SpooledEvent(seq, b"".join(sealed.parts))
        return self._send_with_retries(VAULT_SOURCE, [frame], self._put_sealed)

    def _put_sealed(self, _source: str, frames: Sequence[SpooledEvent]) -> None:
        if self._vault is None:
            raise TypeError("redaction needs a vault")
        self._vault.put(self._pack("", frames))

    def _send_with_retries(
        self, source: str, events: Sequence[SpooledEvent], send: Callable[[str, Sequence[SpooledEvent]], None]
    ) -> bool:
        """Sends events with a limited number of attempts; returns whether all were delivered."""
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                self._sleep(_WAIT_SECONDS * 2**attempt)
            try:
                send(source, events)
            except SinkBusyError as busy:
                events = busy.remaining
                log.warning("%s: %s", source, busy)
            except Exception:
                log.exception("%s: the sink failed", source)
            else:
                return True
        return False

    def _send_once(self, source: str, events: Sequence[SpooledEvent]) -> None:
        destination = self._destinations[source]
        if isinstance(destination, LandingDestination):
            destination.sink.put(self._pack(destination.prefix, events))
            return
        if source not in self._sinks:
            self._sinks[source] = destination.open_sink()
        for dead_letter in self._sinks[source].send(events):
            # The log is no place for the content of an event, so its digest identifies it.
            log.error(
                "%s: the sink permanently rejects an event of %d bytes with the SHA-256 %s: %s",
                source,
                len(dead_letter.event.payload),
                hashlib.sha256(dead_letter.event.payload).hexdigest(),
                dead_letter.reason,
            )

    def _pack(self, prefix: str, events: Sequence[SpooledEvent]) -> PackedObject:
        at = datetime.fromtimestamp(self._clock(), UTC)
        return pack(
            plan_object(prefix, collector=self._collector_id, first=events[0].seq, last=events[-1].seq, created_at=at),
            events,
        )


def parse_head(event: Mapping[str, Any]) -> RequestHead:
    """Parses the request head from an API Gateway event of format 1.0 or 2.0."""
    context = event.get("requestContext") or {}
    headers = {
        str(name).lower().encode("latin-1", "replace"): str(value).encode("latin-1", "replace")
        for name, value in (event.get("headers") or {}).items()
    }
    if "http" in context:  # format 2.0: HTTP APIs and function URLs
        http = context["http"]
        path = _remove_stage(str(event.get("rawPath") or http.get("path", "/")), str(context.get("stage", "")))
        query = str(event.get("rawQueryString") or "")
        return RequestHead(str(http["method"]), path, query.encode(), headers, str(http.get("sourceIp", "")))
    parameters = event.get("multiValueQueryStringParameters") or {}
    query = urlencode(parameters or event.get("queryStringParameters") or {}, doseq=True)
    peer = str((context.get("identity") or {}).get("sourceIp", ""))
    return RequestHead(str(event.get("httpMethod", "POST")), str(event.get("path", "/")), query.encode(), headers, peer)


def decode_body(event: Mapping[str, Any]) -> bytes:
    """Returns the request body as the client sent it, decoded from Base64 if necessary."""
    body = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return str(body).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return str(body).encode("utf-8", "surrogatepass")


def _remove_stage(path: str, stage: str) -> str:
    """Removes the stage name that HTTP APIs prepend to the path, except for `$default`."""
    return path.removeprefix(f"/{stage}") if stage and path.startswith(f"/{stage}/") else path
