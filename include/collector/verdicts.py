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
JSON_TYPE: Final = (b"content-type", b"application/json")
CLOSE: Final = (b"connection", b"close")
KEPT_MALFORMED: Final = "kept:malformed"
#: Of an event that may not be kept, whether its subject has refused or was erased: senders are not told which.
DROPPED: Final = "dropped"
LONGEST_RETRY_SECONDS: Final = 30


class Answer(NamedTuple):
    """Status, body and headers of an answer. `code` names a refusal, and is empty for a success.

    Attributes:
        wire: the whole response of HTTP/1.1 where it is prepared, to a request whose connection stays.
    """

    status: int
    body: bytes
    headers: Headers
    code: str = ""
    wire: bytes = b""

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the answer."""
        return CLOSE in self.headers


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of the table: what SDKs do with the status decides what it is used for."""

    status: int
    message: str
    retried: bool = False
    closes: bool = False


REFUSALS: Final[dict[str, Refusal]] = {
    "bad_key": Refusal(401, "No source has this write key, or it has expired."),
    "origin": Refusal(403, "Scripts of this page may not send to the source: declare its origin."),
    "path": Refusal(404, "There is nothing at this path. Events are posted to /v1/batch or /v1/events."),
    "method": Refusal(405, "Events are sent with POST."),
    "slow_body": Refusal(408, "The body did not arrive in time.", closes=True),
    "too_large": Refusal(413, "The body, or what it inflates to, is above the limit: send less at once.", closes=True),
    "encoding": Refusal(415, "Send the body as it is, or with Content-Encoding gzip or zstd."),
    "rate": Refusal(429, "The key sends more events than its rate allows.", retried=True),
    "spool_full": Refusal(503, "The spool is full: its sink has not taken events for long.", retried=True),
    "disk": Refusal(503, "The disk of the spool does not take events now.", retried=True),
    "keys": Refusal(503, "The key service does not answer.", retried=True),
    "sink": Refusal(503, "The sink does not take events now.", retried=True),
    "busy": Refusal(503, "Too many requests are under way.", retried=True),
    "draining": Refusal(503, "This collector is being stopped; another one takes events.", retried=True, closes=True),
    "internal": Refusal(500, "The collector failed. Send the request again.", retried=True),
}


def refusal(code: str, request_id: str, *, retry_after_seconds: float | None = None) -> Answer:
    """The answer of a row of the table.

    Args:
        retry_after_seconds: where it is known when a retry can succeed; else one to ten seconds, so that clients that
            were turned away together do not come back together. Never above `LONGEST_RETRY_SECONDS`.
    """
    row = REFUSALS[code]
    headers: Headers = [JSON_TYPE]
    if row.retried:
        seconds = random.uniform(1, 10) if retry_after_seconds is None else retry_after_seconds * random.uniform(1, 1.5)
        headers.append((b"retry-after", b"%d" % min(LONGEST_RETRY_SECONDS, max(1, round(seconds + 0.5)))))
    if row.closes:
        headers.append(CLOSE)
    body = orjson.dumps({"code": code, "message": row.message, "request_id": request_id})
    return Answer(row.status, body, headers, code)


def success(count: int, verdicts: Mapping[int, str], *, kept: int | None = None) -> Answer:
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
        "kept": len(verdicts) if kept is None else kept,
        "verdicts": {str(index): verdict for index, verdict in sorted(verdicts.items())},
    }
    return Answer(200, orjson.dumps(content), [JSON_TYPE])


@lru_cache(maxsize=1024)
def _all_accepted(count: int) -> Answer:
    answer = Answer(200, b'{"success":true,"accepted":%d,"kept":0}' % count, [JSON_TYPE])
    return answer._replace(wire=wire_of(answer))


def wire_of(answer: Answer, *, closes: bool = False) -> bytes:
    """The whole response of HTTP/1.1 to a request with a body.

    Args:
        closes: the connection ends with it, whatever its headers say.
    """
    headers = [*answer.headers, CLOSE] if closes and not answer.closes else answer.headers
    lines = [b"HTTP/1.1 %d %s" % (answer.status, HTTPStatus(answer.status).phrase.encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join([*lines, b"content-length: %d" % len(answer.body), b"", answer.body])
