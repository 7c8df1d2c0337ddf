"""The interface of sinks, which send messages and report rejected and failed ones, and the sink `webhook`.

The webhook posts several changes per request as JSON. A 2xx response accepts a request. If its body is `{"failed":
["<id>", …]}`, only these changes are sent again. Requests have the header `Idempotency-Key`, changes have ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import WebhookSinkSpec
from deltaworks.specs.storage import AwsSpec


@dataclass(slots=True)
class SendOutcome:
    """Result of a send by message id. Messages in neither mapping are delivered; `failed` ones are sent again."""

    rejected: dict[str, tuple[DeadReason, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: SendOutcome) -> None:
        """Adds the result of sending other messages."""
        self.rejected |= other.rejected
        self.failed |= other.failed


class Sink(Protocol):
    """Sends messages with distinct keys, in any order. Used by one thread; it may use threads itself.

    Messages with an unknown result are `failed` and sent again with the same ids.
    """

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        """Sends messages; returns once the result of each is known.

        Raises:
            ConfigError: FEED_SINK_REFUSED, the sink accepts no messages from this client.
        """

    def close(self) -> None:
        """Closes connections."""


def sink_refused_error(destination: str, reason: object, *, hint: str) -> ConfigError:
    """Returns the error of a sink that is missing or denies access."""
    return ConfigError("FEED_SINK_REFUSED", f"{destination} accepts no messages from this feed: {reason}.", hint=hint)


def split_into_batches(
    messages: Sequence[Message], *, max_messages: int, max_bytes: int, extra_bytes: int = 0
) -> Iterator[list[Message]]:
    """Yields batches of at most `max_messages` and `max_bytes`. A message that exceeds `max_bytes` forms its
    own batch."""
    batch: list[Message] = []
    size = 0
    for item in messages:
        length = len(item.body) + extra_bytes
        if batch and (len(batch) == max_messages or size + length > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


_MAX_BYTES = 4 << 20
_TOO_LARGE = 413
#: HTTP statuses that reject the content of a request. For a request with a single change they are final.
_CONTENT_STATUSES = frozenset({400, 409, 411, _TOO_LARGE, 415, 422, 431})
_RETRY_STATUSES = frozenset({408, 425, 429})
_SUCCESS, _REDIRECT, _SERVER_ERROR = 200, 300, 500


class WebhookSink:
    """Posts to one webhook URL. Errors do not contain the URL, because it may be secret."""

    def __init__(self, spec: WebhookSinkSpec, _messaging: AwsSpec) -> None:
        import httpx2

        self._url = resolve_text(spec.url)
        headers = {"Content-Type": "application/json"}
        if spec.token is not None:
            headers["Authorization"] = f"Bearer {spec.token.resolve()}"
        self._client = httpx2.Client(timeout=spec.timeout_seconds, headers=headers)
        self._max_rows = spec.rows_per_call

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        outcome = SendOutcome()
        for batch in split_into_batches(messages, max_messages=self._max_rows, max_bytes=_MAX_BYTES):
            outcome.add(self._post(batch))
        return outcome

    def _post(self, batch: list[Message]) -> SendOutcome:
        import httpx2

        name = hashlib.sha256("".join(item.id for item in batch).encode()).hexdigest()[:32]
        body = b'{"feed":' + orjson.dumps(batch[0].feed) + b',"changes":[' + b",".join(m.body for m in batch) + b"]}"
        try:
            response = self._client.post(self._url, content=body, headers={"Idempotency-Key": name})
        except httpx2.InvalidURL as error:
            raise sink_refused_error(
                "The webhook", "its address is invalid", hint="Write https://…, in the variable too."
            ) from error
        except httpx2.HTTPError as error:
            return SendOutcome(failed=dict.fromkeys((item.id for item in batch), type(error).__name__))
        if _SUCCESS <= response.status_code < _REDIRECT:
            return SendOutcome(failed=dict.fromkeys(_failed_ids(response, batch), "the receiver reported it as failed"))
        if response.status_code in _RETRY_STATUSES or response.status_code >= _SERVER_ERROR:
            return SendOutcome(failed=dict.fromkeys((item.id for item in batch), f"it answered {response.status_code}"))
        if response.status_code not in _CONTENT_STATUSES:
            raise sink_refused_error(
                "The webhook", f"it answered {response.status_code}", hint="Check its address and its token under `to`."
            )
        if len(batch) > 1:
            half = len(batch) // 2
            outcome = self._post(batch[:half])
            outcome.add(self._post(batch[half:]))
            return outcome
        reason = DeadReason.TOO_LARGE if response.status_code == _TOO_LARGE else DeadReason.REFUSED
        text = response.text[:200]
        return SendOutcome(rejected={batch[0].id: (reason, f"it answered {response.status_code} {text}".strip())})

    def close(self) -> None:
        self._client.close()


def _failed_ids(response: Any, batch: Sequence[Message]) -> list[str]:
    """Returns the sent ids that the response lists as failed."""
    try:
        content = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return []
    failed = content.get("failed") if isinstance(content, dict) else None
    ids = {item.id for item in batch}
    return [item for item in failed if item in ids] if isinstance(failed, list) else []
