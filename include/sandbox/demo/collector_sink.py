"""Posts generated events to a collector over HTTP, one by one in lines, as a game's clients would."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from generator.delivery import Sink
from generator.reference_scan import scan

#: What one request holds at most.
LINES_PER_REQUEST = 400
_LINES = "application/x-ndjson"
_JSON = "application/json"
_RETRYABLE_STATUS = (408, 429, 502, 503, 504)


class BusyError(Exception):
    """The collector did not take a request, or could not be reached; it can be sent again."""


class CollectorSink:
    """Posts what lies in each object; a request is tried eight times. Used by one thread.

    `acknowledged` counts the events that a collector has answered for. A request that is sent again can double events:
    they carry ids, by which gold counts each once.

    Args:
        url: that of POST /v1/events.
        key: of a source of the collector; without one the request names none.
    """

    def __init__(
        self, url: str, *, key: str = "", client: httpx.Client | None = None, longest_wait_seconds: float = 10
    ) -> None:
        self.acknowledged = 0
        self._url = url
        self._auth = httpx.BasicAuth(key, "") if key else httpx.USE_CLIENT_DEFAULT
        self._client = client or httpx.Client(timeout=60)
        self._retrying = retry(
            retry=retry_if_exception_type(BusyError),
            stop=stop_after_attempt(8),
            wait=wait_exponential_jitter(initial=0.2, max=longest_wait_seconds, jitter=min(1, longest_wait_seconds)),
            reraise=True,
        )

    def __call__(self, key: str, body: bytes) -> None:
        """Post the events of one object.

        Raises:
            httpx.HTTPStatusError: the collector refuses a request for good.
            BusyError: it was busy or away all eight times.
        """
        events = list(events_of(body))
        lines = [event for event in events if event.strip()]
        for start in range(0, len(lines), LINES_PER_REQUEST):
            self._post(b"\n".join(lines[start : start + LINES_PER_REQUEST]), _LINES)
        for empty in (event for event in events if not event.strip()):  # no line, but a request all the same
            self._post(empty, _JSON)

    def _post(self, content: bytes, kind: str) -> None:
        answer = self._retrying(self._post_once)(content, kind)
        taken = answer.json()
        self.acknowledged += int(taken["accepted"]) + int(taken.get("kept", 0))

    def _post_once(self, content: bytes, kind: str) -> httpx.Response:
        try:
            answer = self._client.post(self._url, content=content, headers={"Content-Type": kind}, auth=self._auth)
        except httpx.TransportError as error:
            raise BusyError(f"{self._url}: {error}") from error
        if answer.status_code in _RETRYABLE_STATUS:
            raise BusyError(f"{self._url} answered {answer.status_code}: {answer.text[:200]}")
        return answer.raise_for_status()


def collector_sink(
    url: str, *, key: str = "", client: httpx.Client | None = None, longest_wait_seconds: float = 10
) -> Sink:
    """A sink that posts what lies in each object to `url`, as `CollectorSink` does."""
    return CollectorSink(url, key=key, client=client, longest_wait_seconds=longest_wait_seconds)


def events_of(body: bytes) -> Iterator[bytes]:
    """What clients sent, from an object a delivery stream has packed; broken pieces as they are."""
    for piece in scan(gzip.decompress(body)):
        sent = piece.value.get("body") if piece.is_readable and isinstance(piece.value, dict) else None
        yield sent.encode() if isinstance(sent, str) else piece.raw
