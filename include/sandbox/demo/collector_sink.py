"""Posts generated events to a collector over HTTP in JSON lines, like a game's clients."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx2
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from generator.delivery import Sink
from generator.reference_scan import scan

#: Maximum number of lines per request.
LINES_PER_REQUEST = 400
_LINES = "application/x-ndjson"
_JSON = "application/json"
_RETRYABLE_STATUS = (408, 429, 502, 503, 504)


class BusyError(Exception):
    """The collector is busy or unreachable; the request can be retried."""


class CollectorSink:
    """Posts the events of each object, with up to eight attempts per request. Not thread-safe.

    `acknowledged` counts the events that the collector has acknowledged. A retried request can duplicate events; gold
    counts each once, by its id.

    Args:
        url: address of POST /v1/events.
        key: write key of a source of the collector; empty sends no key.
    """

    def __init__(
        self, url: str, *, key: str = "", client: httpx2.Client | None = None, longest_wait_seconds: float = 10
    ) -> None:
        self.acknowledged = 0
        self._url = url
        self._auth = httpx2.BasicAuth(key, "") if key else httpx2.USE_CLIENT_DEFAULT
        self._client = client or httpx2.Client(timeout=60)
        self._retrying = retry(
            retry=retry_if_exception_type(BusyError),
            stop=stop_after_attempt(8),
            wait=wait_exponential_jitter(initial=0.2, max=longest_wait_seconds, jitter=min(1, longest_wait_seconds)),
            reraise=True,
        )

    def __call__(self, key: str, body: bytes) -> None:
        """Posts the events of one object.

        Raises:
            httpx2.HTTPStatusError: the collector rejects the request permanently.
            BusyError: the collector was busy or unreachable eight times.
        """
        events = list(events_of(body))
        lines = [event for event in events if event.strip()]
        for start in range(0, len(lines), LINES_PER_REQUEST):
            self._post(b"\n".join(lines[start : start + LINES_PER_REQUEST]), _LINES)
        for empty in (event for event in events if not event.strip()):  # an empty event cannot be a line
            self._post(empty, _JSON)

    def _post(self, content: bytes, kind: str) -> None:
        answer = self._retrying(self._post_once)(content, kind)
        result = answer.json()
        self.acknowledged += int(result["accepted"]) + int(result.get("kept", 0))

    def _post_once(self, content: bytes, kind: str) -> httpx2.Response:
        try:
            answer = self._client.post(self._url, content=content, headers={"Content-Type": kind}, auth=self._auth)
        except httpx2.TransportError as error:
            raise BusyError(f"{self._url}: {error}") from error
        if answer.status_code in _RETRYABLE_STATUS:
            raise BusyError(f"{self._url} answered {answer.status_code}: {answer.text[:200]}")
        return answer.raise_for_status()


def collector_sink(
    url: str, *, key: str = "", client: httpx2.Client | None = None, longest_wait_seconds: float = 10
) -> Sink:
    """Returns a `CollectorSink` for `url` as a sink function."""
    return CollectorSink(url, key=key, client=client, longest_wait_seconds=longest_wait_seconds)


def events_of(body: bytes) -> Iterator[bytes]:
    """Yields the original client events of an object packed by a delivery stream; malformed ones are unchanged."""
    for piece in scan(gzip.decompress(body)):
        sent = piece.value.get("body") if piece.is_readable and isinstance(piece.value, dict) else None
        yield sent.encode() if isinstance(sent, str) else piece.raw
