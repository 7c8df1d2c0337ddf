"""Client of the traffic address: GET returns weights, POST sets them, identified by the notification's id.

    GET  → {"weights": {"a": 0.6, "b": 0.4}}
    POST ← {"id": …, "weights": {"a": 0.4, "b": 0.6}, "from": "a", "to": "b"}, header Idempotency-Key: the same id

After a lost reply the weights may have changed, so the caller reads the weights instead of repeating the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.errors import ContractError, TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.remediation import TrafficWebhookSpec

_FIRST_REDIRECT_STATUS, _FIRST_SERVER_ERROR_STATUS = 300, 500
_RETRYABLE_STATUSES = (408, 425, 429)


class TrafficClient:
    """Client of one traffic address. Errors do not contain the address, since it may be a secret."""

    def __init__(self, spec: TrafficWebhookSpec) -> None:
        self._spec = spec

    def weights(self) -> dict[str, float]:
        """Returns the current weights by target.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE. ContractError: TRAFFIC_REFUSED, the response is invalid.
        """
        content = self._request("GET", None, {})
        weights = content.get("weights") if isinstance(content, dict) else None
        if not isinstance(weights, dict) or not all(_is_weight(value) for value in weights.values()):
            raise _refused_error('the response has no weights, such as {"weights": {"a": 0.5, "b": 0.5}}')
        return {str(name): float(value) for name, value in weights.items()}

    def shift(self, weights: Mapping[str, float], *, call_id: str, source: str, target: str) -> None:
        """Sets the weights with a single call.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE, the outcome is unknown. ContractError: TRAFFIC_REFUSED, nothing
                changed.
        """
        body = {"id": call_id, "weights": dict(weights), "from": source, "to": target}
        self._request("POST", body, {"Idempotency-Key": call_id})

    def _request(self, method: str, body: Any, headers: dict[str, str]) -> Any:
        import httpx

        if self._spec.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self._spec.token.resolve()}"}
        try:
            answer = httpx.request(
                method, resolve_text(self._spec.url), json=body, headers=headers, timeout=self._spec.timeout_seconds
            )
        except httpx.InvalidURL as error:
            raise _refused_error("its URL is invalid") from error
        except httpx.HTTPError as error:
            raise _unreachable_error(type(error).__name__) from error
        if answer.status_code >= _FIRST_SERVER_ERROR_STATUS or answer.status_code in _RETRYABLE_STATUSES:
            raise _unreachable_error(f"it answered {answer.status_code}")
        if answer.status_code >= _FIRST_REDIRECT_STATUS:
            raise _refused_error(f"it answered {answer.status_code}")
        try:
            return answer.json() if method == "GET" else None
        except ValueError as error:
            raise _refused_error("the response is not JSON") from error


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreachable_error(problem: str) -> TransientError:
    return TransientError("TRAFFIC_UNREACHABLE", f"The traffic address did not respond: {problem}.")


def _refused_error(problem: str) -> ContractError:
    return ContractError("TRAFFIC_REFUSED", f"The traffic address rejected the request: {problem}.")
