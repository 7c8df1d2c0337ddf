"""The address that carries weights: GET tells them, POST sets them, named by the id of the notification.

    GET  → {"weights": {"a": 0.6, "b": 0.4}}
    POST ← {"id": …, "weights": {"a": 0.4, "b": 0.6}, "from": "a", "to": "b"}, header Idempotency-Key: the same id

A reply that is lost says nothing: the weights may have moved. So the caller asks for them instead of calling again.
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
    """One address. No error holds it, since it may be a secret."""

    def __init__(self, spec: TrafficWebhookSpec) -> None:
        self._spec = spec

    def weights(self) -> dict[str, float]:
        """The weights now, by target.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE. ContractError: TRAFFIC_REFUSED, the answer is none that is understood.
        """
        content = self._request("GET", None, {})
        weights = content.get("weights") if isinstance(content, dict) else None
        if not isinstance(weights, dict) or not all(_is_weight(value) for value in weights.values()):
            raise _refused_error('its answer has no weights, such as {"weights": {"a": 0.5, "b": 0.5}}')
        return {str(name): float(value) for name, value in weights.items()}

    def shift(self, weights: Mapping[str, float], *, call_id: str, source: str, target: str) -> None:
        """Set the weights, once.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE, they may be set or not. ContractError: TRAFFIC_REFUSED, they are not.
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
            raise _refused_error("its address is none") from error
        except httpx.HTTPError as error:
            raise _unreachable_error(type(error).__name__) from error
        if answer.status_code >= _FIRST_SERVER_ERROR_STATUS or answer.status_code in _RETRYABLE_STATUSES:
            raise _unreachable_error(f"it answered {answer.status_code}")
        if answer.status_code >= _FIRST_REDIRECT_STATUS:
            raise _refused_error(f"it answered {answer.status_code}")
        try:
            return answer.json() if method == "GET" else None
        except ValueError as error:
            raise _refused_error("its answer is no JSON") from error


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreachable_error(why: str) -> TransientError:
    return TransientError(
        "TRAFFIC_UNREACHABLE",
        f"The address that carries the weights gave no answer: {why}.",
        hint="It is asked again. See whether it runs, and whether `action.timeout_seconds` is long enough.",
    )


def _refused_error(why: str) -> ContractError:
    return ContractError(
        "TRAFFIC_REFUSED",
        f"The address that carries the weights refused: {why}.",
        hint="Check `action.url` and `action.token` of the remediation, and what the address answers to GET.",
    )
