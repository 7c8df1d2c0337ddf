"""The door: one request from its head to its answer, without a server around it. HTTP servers and a Lambda share it.

A request is admitted by its head, then its body is read into events, then they are made durable, then it is answered.
Nothing that passes key and size is turned away for what is in it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple

from collector.admission import KeyHolder, Keys, client_address, cors_headers
from collector.bodies import ENCODINGS, Sent, TooLargeError, batch, events_or_lines, inflated, one_event, text_of
from collector.segments import Kind
from collector.stamps import Arrival, EventStrip, StampRules, Strip, is_bot, stamped_events
from collector.submissions import Entry
from collector.verdicts import DROPPED, KEPT_MALFORMED, Answer, refusal, success
from deltaworks.errors import DeltaworksError
from deltaworks.privacy.ip_truncation import truncate_ip
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)

_BATCH = ("batch", "b", "import")
_SINGLE = ("track", "identify", "page", "screen", "group", "alias", "t", "i", "p", "s", "g", "a")
#: How the body of a path is read.
PATHS: Mapping[str, str] = {
    **{f"/v1/{name}": "batch" for name in _BATCH},
    "/beacon/v1/batch": "batch",
    **{f"/v1/{name}": "single" for name in _SINGLE},
    "/v1/events": "events",
}
LINES_TYPES = (b"application/x-ndjson", b"application/jsonl", b"application/json-lines")


class Head(NamedTuple):
    """A request without its body. Names of headers are in lower case."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    peer: str = ""


class Admitted(NamedTuple):
    """A request whose body may be read. `holder` is None where its key is in the body."""

    head: Head
    request_id: str
    form: str
    encoding: bytes
    holder: KeyHolder | None


class Taken(NamedTuple):
    """The events of a request, to be made durable before `answer` is given."""

    entries: list[Entry]
    answer: Answer
    source: str
    kept: int
    sealed: Entry | None = None

    @property
    def submission(self) -> list[Entry]:
        """All that is to be made durable, what was sealed first: it has the number of the first event behind it."""
        return self.entries if self.sealed is None else [self.sealed, *self.entries]


class Door:
    """Admits requests and reads their events. Used by one thread.

    Args:
        collector: the id that events carry.
        numbers: of sources, as the spool has them.
        refuses: why nothing can be taken now, looked at before a body is read; None where it can.
        strips: by source, what is done to an event before anything of it is kept.
    """

    def __init__(
        self,
        spec: CollectorSpec,
        *,
        collector: str,
        numbers: Mapping[str, int],
        refuses: Callable[[], str | None] = lambda: None,
        strips: Mapping[str, Strip] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.keys = Keys(spec, clock=clock)
        self._collector = collector
        self._numbers = numbers
        self._refuses = refuses
        self._clock = clock
        self._rules = {
            name: StampRules(
                skew_ms=int(spec.skew_minutes * 60_000),
                late_ms=int(spec.late_hours * 3_600_000),
                gateway=source.wrap == "api_gateway",
                event_time=source.wrap == "api_gateway" and source.stamp_time,
                strip=(strips or {}).get(name),
            )
            for name, source in spec.sources.items()
        }

    def admit(self, head: Head, request_id: str) -> Admitted | Answer:
        """Whether the body of a request may be read; else the answer."""
        headers = head.headers
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        if (problem := self._head_problem(head, encoding)) is not None:
            return refusal(problem, request_id)
        holder, present = self.keys.of_request(headers.get(b"authorization"), head.query)
        if present and holder is None:
            return refusal("bad_key", request_id)
        if holder is not None and (answer := self._turned_away(head, holder, request_id)) is not None:
            return answer
        if (problem := self._refuses()) is not None:
            return refusal(problem, request_id)
        return Admitted(head, request_id, PATHS[head.path], encoding, holder)

    def _head_problem(self, head: Head, encoding: bytes) -> str | None:
        """What is wrong with a request whoever sends it."""
        if head.path not in PATHS:
            return "path"
        if head.method != "POST":
            return "method"
        if encoding not in ENCODINGS:
            return "encoding"
        length = head.headers.get(b"content-length", b"")
        return "too_large" if length.isdigit() and int(length) > self.spec.limits.max_body_bytes else None

    def read(self, admitted: Admitted, body: bytes) -> Taken | Answer:
        """The events of a body that was read; else the answer."""
        head, request_id = admitted.head, admitted.request_id
        if len(body) > self.spec.limits.max_body_bytes:
            return refusal("too_large", request_id)
        try:
            content = inflated(body, admitted.encoding, most_bytes=self.spec.limits.max_body_bytes)
            sent = _sent(admitted, text_of(content))
        except TooLargeError:
            return refusal("too_large", request_id)
        holder = admitted.holder
        if holder is None:
            holder = self.keys.of_key(sent.write_key) if sent.write_key else None
            if holder is None:
                return refusal("bad_key", request_id)
            if (answer := self._turned_away(head, holder, request_id)) is not None:
                return answer
        if holder.bucket is not None:
            holder.bucket.take(len(sent.events))
        return self._taken(sent, holder, head, request_id)

    def _turned_away(self, head: Head, holder: KeyHolder, request_id: str) -> Answer | None:
        origin = head.headers.get(b"origin")
        if origin is not None and not holder.takes_origin(origin.decode("latin-1")):
            return refusal("origin", request_id)
        if holder.bucket is not None and (wait := holder.bucket.wait_seconds()) > 0:
            return refusal("rate", request_id, retry_after_seconds=wait)
        return None

    def _taken(self, sent: Sent, holder: KeyHolder, head: Head, request_id: str) -> Taken | Answer:
        address = client_address(head.peer, head.headers, trusted_hops=self.spec.listen.trusted_hops)
        arrival = Arrival(
            source=holder.source,
            key=holder.digest,
            collector=self._collector,
            request=request_id,
            received_ms=int(self._clock() * 1000),
            address=truncate_ip(address),
            bot=is_bot(head.headers.get(b"user-agent", b"")),
        )
        number = self._numbers[holder.source]
        rules = self._rules[holder.source]
        strip = None if rules.strip is None else rules.strip.begin(arrival.received_ms)
        stamped = stamped_events(sent, arrival, rules, strip)
        entries = [Entry(number, parts) for parts in stamped if parts is not None]
        verdicts: dict[int, str] = {}
        kept = 0
        for index, event in enumerate(sent.events):
            if event.value is None:
                verdicts[index] = KEPT_MALFORMED
                kept += 1
            if stamped[index] is None:
                verdicts[index] = DROPPED
        sealed = self._sealed(strip, number, request_id) if strip is not None and entries else None
        if isinstance(sealed, Answer):
            return sealed
        answer = success(len(stamped), verdicts, kept=kept)
        return Taken(entries, answer, holder.source, kept, sealed)

    @staticmethod
    def _sealed(strip: EventStrip, number: int, request_id: str) -> Entry | Answer | None:
        """What of a request goes to the vault; nothing of the request is taken where that cannot be sealed."""
        try:
            payload = strip.sealed(request_id)
        except DeltaworksError as error:
            log.warning("a request was turned away: %s", error.condition)
            return refusal("keys", request_id)
        return None if payload is None else Entry(number, (payload,), Kind.IDENTITIES)

    def with_cors(self, head: Head, answer: Answer) -> Answer:
        """The answer with what lets scripts read it: those of pages that may send to any of the sources."""
        origin = head.headers.get(b"origin")
        if origin is None or not self.keys.anyone_takes_origin(origin.decode("latin-1")):
            return answer
        headers = [*answer.headers, *cors_headers(origin)]
        return Answer(answer.status, answer.body, headers, answer.code)


def _sent(admitted: Admitted, text: str) -> Sent:
    if admitted.form == "batch":
        return batch(text)
    if admitted.form == "single":
        return one_event(text)
    kind = admitted.head.headers.get(b"content-type", b"").lower()
    return events_or_lines(text, lines=kind.startswith(LINES_TYPES))


def new_request_id() -> str:
    """An id of a request, as answers and events carry it."""
    return os.urandom(12).hex()


def request_ids() -> Callable[[], str]:
    """Gives the ids of one process's requests, without a call of the system for each.

    They look as those of `new_request_id`. A process that is copied while it runs, as a Lambda may be, needs that one.
    """
    start, numbers = os.urandom(6).hex(), count(int.from_bytes(os.urandom(4)))
    return lambda: f"{start}{next(numbers):012x}"
