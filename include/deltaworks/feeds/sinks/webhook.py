"""The `webhook` sink: posts several changes per request as JSON.

A 2xx response accepts a request. If its body is `{"failed": ["<id>", …]}`, only these changes are sent again. Requests
have the header `Idempotency-Key`, changes have ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.sinks.base import SendOutcome, sink_refused_error, split_into_batches
from deltaworks.specs.base import resolve_text
from deltaworks.specs.feeds import WebhookSinkSpec
from deltaworks.specs.storage import AwsSpec

_MAX_BYTES = 4 << 20
_TOO_LARGE = 413
#: HTTP statuses that reject the content of a request. For a request with a single change they are final.
_CONTENT_STATUSES = frozenset({400, 409, 411, _TOO_LARGE, 415, 422, 431})
_RETRY_STATUSES = frozenset({408, 425, 429})
_SUCCESS, _REDIRECT, _SERVER_ERROR = 200, 300, 500


class WebhookSink:
    """Posts to one webhook URL. Errors do not contain the URL, because it may be secret."""

    def __init__(self, spec: WebhookSinkSpec, _messaging: AwsSpec) -> None:
        import httpx

        self._url = resolve_text(spec.url)
        headers = {"Content-Type": "application/json"}
        if spec.token is not None:
            headers["Authorization"] = f"Bearer {spec.token.resolve()}"
        self._client = httpx.Client(timeout=spec.timeout_seconds, headers=headers)
        self._max_rows = spec.rows_per_call

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        outcome = SendOutcome()
        for batch in split_into_batches(messages, max_messages=self._max_rows, max_bytes=_MAX_BYTES):
            outcome.add(self._post(batch))
        return outcome

    def _post(self, batch: list[Message]) -> SendOutcome:
        import httpx

        name = hashlib.sha256("".join(item.id for item in batch).encode()).hexdigest()[:32]
        body = b'{"feed":' + orjson.dumps(batch[0].feed) + b',"changes":[' + b",".join(m.body for m in batch) + b"]}"
        try:
            response = self._client.post(self._url, content=body, headers={"Idempotency-Key": name})
        except httpx.InvalidURL as error:
            raise sink_refused_error(
                "The webhook", "its address is invalid", hint="Write https://…, in the variable too."
            ) from error
        except httpx.HTTPError as error:
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
