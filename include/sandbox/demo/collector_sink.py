"""Posts generated events to a collector over HTTP, one by one in lines, as a game's clients would."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from generator.delivery import Sink
from generator.reference_scan import scan

#: What one request holds at most; a collector behind API Gateway takes ten megabytes.
LINES_PER_REQUEST = 400
_LINES = "application/x-ndjson"
_JSON = "application/json"


class BusyError(Exception):
    """The collector did not take all of a request, or could not be reached; it can be sent again."""


def collector_sink(url: str, *, client: httpx.Client | None = None, longest_wait_seconds: float = 10) -> Sink:
    """A sink that posts what lies in each object to `url`; a request is tried eight times.

    A request that is sent again can double events in the stream: they carry ids, by which gold counts each once.

    Raises:
        httpx.HTTPStatusError: by the sink, where the collector refuses a request for good.
        BusyError: by the sink, where it was busy or away all eight times.
    """
    client = client or httpx.Client(timeout=60)

    @retry(
        retry=retry_if_exception_type(BusyError),
        stop=stop_after_attempt(8),
        wait=wait_exponential_jitter(initial=0.2, max=longest_wait_seconds, jitter=min(1, longest_wait_seconds)),
        reraise=True,
    )
    def post(content: bytes, kind: str) -> None:
        try:
            answer = client.post(url, content=content, headers={"Content-Type": kind})
        except httpx.TransportError as error:
            raise BusyError(f"{url}: {error}") from error
        if answer.status_code in (429, 502, 503, 504):
            raise BusyError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
        answer.raise_for_status()

    def put(key: str, body: bytes) -> None:
        events = list(events_of(body))
        lines = [event for event in events if event.strip()]
        for start in range(0, len(lines), LINES_PER_REQUEST):
            post(b"\n".join(lines[start : start + LINES_PER_REQUEST]), _LINES)
        for empty in (event for event in events if not event.strip()):  # no line, but a request all the same
            post(empty, _JSON)

    return put


def events_of(body: bytes) -> Iterator[bytes]:
    """What clients sent, from an object a delivery stream has packed; broken pieces as they are."""
    for piece in scan(gzip.decompress(body)):
        sent = piece.value.get("body") if piece.readable and isinstance(piece.value, dict) else None
        yield sent.encode() if isinstance(sent, str) else piece.raw
