"""What the collector answers: one table of refusals, and the body of a success.

A success is 200 and never 202 or 204: one SDK in wide use takes those for failures, sends ten times and drops the
batch. For the same reason every error has `code` and `message`. SDKs read the status alone: nothing hangs on verdicts.
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
#: Of an event that may not be kept, whether its subject has refused or was erased: senders are not told which.
DROPPED_VERDICT: Final = "dropped"
MAX_RETRY_AFTER_SECONDS: Final = 30


class Response(NamedTuple):
    """Status, body and headers of an answer. `code` names a refusal, and is empty for a success.

    Attributes:
        wire: the whole response of HTTP/1.1 where it is prepared, to a request whose connection stays.
    """

    status: int
    body: bytes
    headers: Headers
    code: str = ""
    prepared_bytes: bytes = b""

    @property
    def closes_connection(self) -> bool:
        """Whether the connection ends with the answer."""
        return CLOSE_HEADER in self.headers


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row of the table: what SDKs do with the status decides what it is used for."""

    status: int
    message: str
    is_retryable: bool = False
    closes_connection: bool = False


REJECTIONS: Final[dict[str, Rejection]] = {
    "bad_key": Rejection(401, "No source has this write key, or it has expired."),
    "origin": Rejection(403, "Scripts of this page may not send to the source: declare its origin."),
    "path": Rejection(404, "There is nothing at this path. Events are posted to /v1/batch or /v1/events."),
    "method": Rejection(405, "Events are sent with POST."),
    "slow_body": Rejection(408, "The body did not arrive in time.", closes_connection=True),
    "too_large": Rejection(
        413, "The body, or what it inflates to, is above the limit: send less at once.", closes_connection=True
    ),
    "encoding": Rejection(415, "Send the body as it is, or with Content-Encoding gzip or zstd."),
    "rate": Rejection(429, "The key sends more events than its rate allows.", is_retryable=True),
    "spool_full": Rejection(503, "The spool is full: its sink has not taken events for long.", is_retryable=True),
    "disk": Rejection(503, "The disk of the spool does not take events now.", is_retryable=True),
    "keys": Rejection(503, "The key service does not answer.", is_retryable=True),
    "sink": Rejection(503, "The sink does not take events now.", is_retryable=True),
    "busy": Rejection(503, "Too many requests are under way.", is_retryable=True),
    "draining": Rejection(
        503, "This collector is being stopped; another one takes events.", is_retryable=True, closes_connection=True
    ),
    "internal": Rejection(500, "The collector failed. Send the request again.", is_retryable=True),
}


def reject(code: str, request_id: str, *, retry_after_seconds: float | None = None) -> Response:
    """The answer of a row of the table.

    Args:
        retry_after_seconds: where it is known when a retry can succeed; else one to ten seconds, so that clients that
            were turned away together do not come back together. Never above `LONGEST_RETRY_SECONDS`.
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
    """All events of a request are durable, but for those that may not be kept at all.

    Args:
        verdicts: of other events than the accepted ones, by index.
        kept: how many of these could not be read and are in quarantine later; all of them by default.
    """
    if not verdicts:
        return _all_accepted(count)
    content = {
        "success": True,
        "accepted": count - len(verdicts),
        "kept": len(verdicts) if malformed_count is None else malformed_count,
        "verdicts": {str(index): verdict for index, verdict in sorted(verdicts.items())},
    }
    return Response(200, orjson.dumps(content), [JSON_CONTENT_TYPE])


@lru_cache(maxsize=1024)
def _all_accepted(count: int) -> Response:
    response = Response(200, b'{"success":true,"accepted":%d,"kept":0}' % count, [JSON_CONTENT_TYPE])
    return response._replace(prepared_bytes=encode_response(response))


def encode_response(response: Response, *, closes_connection: bool = False) -> bytes:
    """The whole response of HTTP/1.1 to a request with a body.

    Args:
        closes: the connection ends with it, whatever its headers say.
    """
    headers = (
        [*response.headers, CLOSE_HEADER] if closes_connection and not response.closes_connection else response.headers
    )
    lines = [b"HTTP/1.1 %d %s" % (response.status, HTTPStatus(response.status).phrase.encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(response.body), b"", response.body])
