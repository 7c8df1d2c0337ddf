"""Handles one request from its head to its response, independently of a server. Shared by HTTP servers and the Lambda.

A request is admitted by its head, its body is parsed into events, the events are made durable, and then the response is
sent. A request with a valid key and size is never rejected for its content.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple

from collector.admission import Bounds, KeyRegistry, SourceKey, client_address, cors_headers
from collector.bodies import (
    ENCODINGS,
    MAX_EVENTS,
    RequestBody,
    Steps,
    TooLargeError,
    decode_text,
    inflate_body,
    parse_batch,
    parse_events,
    parse_single,
    run_steps,
)
from collector.responses import DROPPED_VERDICT, MALFORMED_VERDICT, Response, reject, success
from collector.segments import FrameKind
from collector.stamps import RequestOrigin, RequestRedaction, SourceRedaction, StampRules, is_bot, stamp_events
from collector.submissions import Entry
from deltaworks.errors import DeltaworksError
from deltaworks.privacy.tokens.redactor import truncate_ip
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)

#: A large event counts as several towards the rate of its key.
_BYTES_PER_EVENT = 4096
_BATCH_PATHS = ("batch", "b", "import")
_SINGLE_PATHS = ("track", "identify", "page", "screen", "group", "alias", "t", "i", "p", "s", "g", "a")
#: The body format of each path.
BODY_FORMS: Mapping[str, str] = {
    **{f"/v1/{name}": "batch" for name in _BATCH_PATHS},
    "/beacon/v1/batch": "batch",
    **{f"/v1/{name}": "single" for name in _SINGLE_PATHS},
    "/v1/events": "events",
}
JSON_LINES_TYPES = (b"application/x-ndjson", b"application/jsonl", b"application/json-lines")


class RequestHead(NamedTuple):
    """A request without its body. Header names are in lower case."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    peer: str = ""


class AdmittedRequest(NamedTuple):
    """A request whose body may be read. `key` is None if the write key is in the body."""

    head: RequestHead
    request_id: str
    body_form: str
    encoding: bytes
    key: SourceKey | None


class AcceptedEvents(NamedTuple):
    """The events of a request, to be made durable before the response is sent. `size_bytes` is the size of all."""

    entries: list[Entry]
    response: Response
    source: str
    malformed_count: int
    size_bytes: int
    sealed: Entry | None = None

    @property
    def submission(self) -> list[Entry]:
        """All entries to write: the sealed frame, if any, then the events."""
        return self.entries if self.sealed is None else [self.sealed, *self.entries]


class RequestHandler:
    """Admits requests and parses their events. Not thread-safe.

    Args:
        collector_id: the id in events.
        source_numbers: numbers of sources in the spool.
        rejection_reason: returns why requests are rejected now, checked before a body is read; None if they are
            accepted.
        redactions: redaction by source, applied before an event is stored.
    """

    def __init__(
        self,
        spec: CollectorSpec,
        *,
        collector_id: str,
        source_numbers: Mapping[str, int],
        rejection_reason: Callable[[], str | None] = lambda: None,
        redactions: Mapping[str, SourceRedaction] | None = None,
        clock: Callable[[], float] = time.time,
        bounds: Bounds | None = None,
    ) -> None:
        self.spec = spec
        self._bounds = bounds or Bounds()
        self.keys = KeyRegistry(spec, clock=clock)
        self._collector_id = collector_id
        self._source_numbers = source_numbers
        self._rejection_reason = rejection_reason
        self._clock = clock
        self._rules = {
            name: StampRules(
                skew_ms=int(spec.skew_minutes * 60_000),
                late_ms=int(spec.late_hours * 3_600_000),
                wrap_api_gateway=source.wrap == "api_gateway",
                add_event_time=source.wrap == "api_gateway" and source.stamp_time,
                redaction=(redactions or {}).get(name),
            )
            for name, source in spec.sources.items()
        }

    def admit(self, head: RequestHead, request_id: str) -> AdmittedRequest | Response:
        """Returns the admitted request, or a rejection."""
        headers = head.headers
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        if (problem := self._head_problem(head, encoding)) is not None:
            return reject(problem, request_id)
        key, present = self.keys.authenticate(headers.get(b"authorization"), head.query)
        if present and key is None:
            return reject("bad_key", request_id)
        if key is not None and (response := self._check_origin_and_rate(head, key, request_id)) is not None:
            return response
        if (problem := self._rejection_reason()) is not None:
            return reject(problem, request_id)
        return AdmittedRequest(head, request_id, BODY_FORMS[head.path], encoding, key)

    def _head_problem(self, head: RequestHead, encoding: bytes) -> str | None:
        """Returns the error code of an invalid request head, regardless of its sender."""
        if head.path not in BODY_FORMS:
            return "path"
        if head.method != "POST":
            return "method"
        if encoding not in ENCODINGS:
            return "encoding"
        length = head.headers.get(b"content-length", b"")
        return "too_large" if length.isdigit() and int(length) > self.spec.limits.max_body_bytes else None

    def read_events(self, request: AdmittedRequest, body: bytes) -> AcceptedEvents | Response:
        """Parses the events of a body; returns a rejection if that is not possible."""
        return run_steps(self.read_in_steps(request, body))

    def read_in_steps(self, request: AdmittedRequest, body: bytes) -> Steps[AcceptedEvents | Response]:
        """Does the work of `read_events` in steps, of which a body of few events has one.

        A body without a valid key in the request's head is small, because parsing it may show that it has none.
        """
        head, request_id, key, bounds = request.head, request.request_id, request.key, self._bounds
        max_bytes, max_events = self.spec.limits.max_body_bytes, MAX_EVENTS
        if key is None:
            max_bytes, max_events = min(max_bytes, bounds.keyless_bytes), min(max_events, bounds.keyless_events)
        if len(body) > max_bytes:
            return reject("too_large", request_id)
        try:
            content = inflate_body(body, request.encoding, max_bytes=max_bytes, max_members=bounds.gzip_members)
            sent = yield from _parse_body(request, decode_text(content), max_events)
        except TooLargeError:
            return reject("too_large", request_id)
        if key is None:
            key = self.keys.find_key(sent.write_key) if sent.write_key else None
            if key is None:
                return reject("bad_key", request_id)
            if (response := self._check_origin_and_rate(head, key, request_id)) is not None:
                return response
        if key.rate_limit is not None:
            key.rate_limit.consume(max(len(sent.events), len(content) // _BYTES_PER_EVENT))
        try:
            return (yield from self._stamp(sent, key, head, request_id, max_bytes=max_bytes * bounds.growth_factor))
        except TooLargeError:
            return reject("too_large", request_id)

    def _check_origin_and_rate(self, head: RequestHead, key: SourceKey, request_id: str) -> Response | None:
        origin = head.headers.get(b"origin")
        if origin is not None and not key.allows_origin(origin.decode("latin-1")):
            return reject("origin", request_id)
        if key.rate_limit is not None and (wait := key.rate_limit.wait_seconds()) > 0:
            return reject("rate", request_id, retry_after_seconds=wait)
        return None

    def _stamp(
        self, sent: RequestBody, key: SourceKey, head: RequestHead, request_id: str, *, max_bytes: int
    ) -> Steps[AcceptedEvents | Response]:
        address = client_address(head.peer, head.headers, trusted_hops=self.spec.listen.trusted_hops)
        arrival = RequestOrigin(
            source=key.source,
            key=key.digest,
            collector=self._collector_id,
            request=request_id,
            received_ms=int(self._clock() * 1000),
            address=truncate_ip(address),
            is_bot=is_bot(head.headers.get(b"user-agent", b"")),
        )
        source_number = self._source_numbers[key.source]
        rules = self._rules[key.source]
        redaction = None if rules.redaction is None else rules.redaction.begin_request(arrival.received_ms)
        stamped = yield from stamp_events(sent, arrival, rules, redaction, max_bytes=max_bytes)
        entries = [Entry(source_number, parts) for parts in stamped if parts is not None]
        verdicts: dict[int, str] = {}
        malformed_count = 0
        for index, event in enumerate(sent.events):
            if event.value is None:
                verdicts[index] = MALFORMED_VERDICT
                malformed_count += 1
            if stamped[index] is None:
                verdicts[index] = DROPPED_VERDICT
        sealed = self._seal(redaction, source_number, request_id) if redaction is not None and entries else None
        if isinstance(sealed, Response):
            return sealed
        response = success(len(stamped), verdicts, malformed_count=malformed_count)
        size_bytes = sent.stamped_bytes + (0 if sealed is None else len(sealed.parts[0]))
        return AcceptedEvents(entries, response, key.source, malformed_count, size_bytes, sealed)

    @staticmethod
    def _seal(redaction: RequestRedaction, source_number: int, request_id: str) -> Entry | Response | None:
        """Returns the request's sealed frame, if any. Rejects the request if it cannot be sealed."""
        try:
            payload = redaction.sealed_payload(request_id)
        except DeltaworksError as error:
            log.warning("a request was rejected: %s", error.condition)
            return reject("keys", request_id)
        return None if payload is None else Entry(source_number, (payload,), FrameKind.IDENTITIES)

    def with_cors(self, head: RequestHead, response: Response) -> Response:
        """Adds CORS headers to the response if any source allows the request's origin."""
        origin = head.headers.get(b"origin")
        if origin is None or not self.keys.is_known_origin(origin.decode("latin-1")):
            return response
        headers = [*response.headers, *cors_headers(origin)]
        return Response(response.status, response.body, headers, response.code)


def _parse_body(request: AdmittedRequest, text: str, max_events: int) -> Steps[RequestBody]:
    if request.body_form == "batch":
        return (yield from parse_batch(text, max_events=max_events))
    if request.body_form == "single":
        return parse_single(text)
    kind = request.head.headers.get(b"content-type", b"").lower()
    return (yield from parse_events(text, json_lines=kind.startswith(JSON_LINES_TYPES), max_events=max_events))


def new_request_id() -> str:
    """Returns a new request id, as in responses and events."""
    return os.urandom(12).hex()


def request_ids() -> Callable[[], str]:
    """Returns a generator function of request ids, without a system call per id.

    The ids look like those of `new_request_id`. Use `new_request_id` in a process that may be cloned while it runs,
    such as a Lambda, because clones would generate the same ids.
    """
    start, numbers = os.urandom(6).hex(), count(int.from_bytes(os.urandom(4)))
    return lambda: f"{start}{next(numbers):012x}"
