"""Responses of the collector: the table of rejections, and the body of a success.

A success is 200, never 202 or 204: a widely used SDK treats those as failures, retries ten times and drops the batch.
For the same reason every error has `code` and `message`. SDKs read only the status; verdicts are informational.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

import orjson

Headers = list[tuple[bytes, bytes]]
JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
CLOSE_HEADER: Final = (b"connection", b"close")
MALFORMED_VERDICT: Final = "kept:malformed"
#: For an event that must not be stored because its subject opted out or was erased; senders are not told which.
DROPPED_VERDICT: Final = "dropped"
MAX_RETRY_AFTER_SECONDS: Final = 30
#: Verdicts in a response. A batch of malformed events must not make a response many times its size.
MAX_VERDICTS: Final = 1000


class Response(NamedTuple):
    """Status, body and headers of a response. `code` names a rejection and is empty for a success.

    Attributes:
        prepared_bytes: the complete HTTP/1.1 response for a keep-alive connection, if prepared.
    """

    status: int
    body: bytes
    headers: Headers
    code: str = ""
    prepared_bytes: bytes = b""

    @property
    def closes_connection(self) -> bool:
        """Whether the connection is closed after the response."""
        return CLOSE_HEADER in self.headers


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row of the rejection table; the status is chosen for how SDKs react to it."""

    status: int
    message: str
    is_retryable: bool = False
    closes_connection: bool = False


REJECTIONS: Final[dict[str, Rejection]] = {
    "request": Rejection(400, "The request is not valid HTTP/1.1.", closes_connection=True),
    "headers": Rejection(431, "The head of the request is too large.", closes_connection=True),
    "bad_key": Rejection(401, "The write key is unknown or has expired."),
    "origin": Rejection(403, "The source does not allow this origin. Declare it in the source's origins."),
    "path": Rejection(404, "Unknown path. Post events to /v1/batch or /v1/events."),
    "method": Rejection(405, "Send events with POST."),
    "slow_body": Rejection(408, "The body did not arrive in time.", closes_connection=True),
    "too_large": Rejection(
        413,
        "The body, its decompressed content or its events exceed the limit. Send smaller requests, with the write key "
        "in the Authorization header.",
        closes_connection=True,
    ),
    "encoding": Rejection(415, "Send the body uncompressed, or with Content-Encoding gzip or zstd."),
    "rate": Rejection(429, "The write key exceeds its rate limit.", is_retryable=True),
    "spool_full": Rejection(
        503, "The spool is full because its sink has not accepted events for some time.", is_retryable=True
    ),
    "disk": Rejection(503, "The spool's disk cannot store events now.", is_retryable=True),
    "keys": Rejection(503, "The key service does not answer.", is_retryable=True),
    "sink": Rejection(503, "The sink does not accept events now.", is_retryable=True),
    "busy": Rejection(503, "Too many requests are in progress.", is_retryable=True),
    "draining": Rejection(
        503, "This collector is stopping. Retry to reach another one.", is_retryable=True, closes_connection=True
    ),
    "internal": Rejection(500, "The collector failed. Send the request again.", is_retryable=True),
}


def reject(code: str, request_id: str, *, retry_after_seconds: float | None = None) -> Response:
    """Returns the response for a row of the rejection table.

    Args:
        retry_after_seconds: when a retry can succeed, if known; otherwise one to ten seconds at random, so that
            rejected clients do not return together. At most `MAX_RETRY_AFTER_SECONDS`.
    """
    row = REJECTIONS[code]
    headers: Headers = [JSON_CONTENT_TYPE]
    if row.is_retryable:
        seconds = random.uniform(1, 10) if retry_after_seconds is None else retry_after_seconds * random.uniform(1, 1.5)
        headers.append((b"retry-after", b"%d" % min(MAX_RETRY_AFTER_SECONDS, max(1, round(seconds + 0.5)))))
    if row.closes_connection:
        headers.append(CLOSE_HEADER)
    body = orjson.dumps({"code": code, "message": row.message, "request_id": request_id})
    return Response(row.status, body, headers, code)


def success(count: int, verdicts: Mapping[int, str], *, malformed_count: int | None = None) -> Response:
    """Returns the response for durable events.

    Args:
        verdicts: by event index, why an event was not accepted as sent: malformed, or must not be stored.
        malformed_count: number of malformed events, which go to quarantine; by default the number of verdicts.
    """
    if not verdicts:
        return _all_accepted(count)
    content = {
        "success": True,
        "accepted": count - len(verdicts),
        "kept": len(verdicts) if malformed_count is None else malformed_count,
        "verdicts": {str(index): verdict for index, verdict in sorted(verdicts.items())[:MAX_VERDICTS]},
    }
    return Response(200, orjson.dumps(content), [JSON_CONTENT_TYPE])


@lru_cache(maxsize=1024)
def _all_accepted(count: int) -> Response:
    response = Response(200, b'{"success":true,"accepted":%d,"kept":0}' % count, [JSON_CONTENT_TYPE])
    return response._replace(prepared_bytes=encode_response(response))


def encode_response(response: Response, *, closes_connection: bool = False, has_body: bool = True) -> bytes:
    """Returns the complete HTTP/1.1 response.

    Args:
        closes_connection: adds `Connection: close`, regardless of the response's headers.
        has_body: False for a response to HEAD, which has the headers only.
    """
    headers = (
        [*response.headers, CLOSE_HEADER] if closes_connection and not response.closes_connection else response.headers
    )
    lines = [b"HTTP/1.1 %d %s" % (response.status, HTTPStatus(response.status).phrase.encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(response.body), b"", response.body if has_body else b""])
