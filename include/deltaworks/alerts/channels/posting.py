"""Posts JSON to the addresses of channels, within limits and without their secrets in errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deltaworks.errors import ContractError, DeltaworksError, TransientError

#: Answers that concern the content: sending it again cannot help, and other content may be accepted.
_CONTENT_STATUSES: Final = frozenset({400, 413, 415, 422})
_MAX_REASON_BYTES: Final = 300


def channel_error(channel: str, why: object) -> TransientError:
    """Builds the error for a channel that did not accept a notification."""
    return TransientError("CHANNEL_FAILED", f"Channel {channel!r} did not accept a notification: {why}.")


def content_error(channel: str, why: object) -> ContractError:
    """Builds the error for a channel that rejects the content of one notification."""
    return ContractError("NOTIFICATION_REJECTED", f"Channel {channel!r} rejects a notification: {why}.")


def post_json(
    channel: str,
    url: str,
    content: Any,
    *,
    timeout_seconds: float,
    headers: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
) -> None:
    """Posts JSON. Follows no redirects. Its errors never contain the URL, which may be a secret.

    Args:
        timeout_seconds: limit of connecting, of sending and of each wait for an answer.
        secrets: texts that the answer may repeat, which are removed from errors.

    Raises:
        TransientError: CHANNEL_FAILED if the address does not answer, or with another status than 2xx.
        ContractError: NOTIFICATION_REJECTED if the status concerns the content (400, 413, 415, 422).
    """
    import httpx2

    # Without TLS no certificate is verified, and loading the system's would take longer than the request.
    with_tls, sent = not url.startswith("http://"), dict(headers or {})
    try:
        with httpx2.stream(
            "POST", url, json=content, headers=sent, timeout=timeout_seconds, verify=with_tls
        ) as response:
            if response.is_success:
                return
            raise _status_error(channel, response.status_code, _read_reason(response, (url, *secrets)))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise channel_error(channel, type(error).__name__) from error


def _status_error(channel: str, status: int, reason: str) -> DeltaworksError:
    why = f"it answered {status}{reason and f' ({reason})'}"
    return content_error(channel, why) if status in _CONTENT_STATUSES else channel_error(channel, why)


def _read_reason(response: Any, secrets: tuple[str, ...]) -> str:
    """Returns the beginning of an answer, which names the reason, on one line."""
    data = b""
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) >= _MAX_REASON_BYTES:
            break
    text = " ".join(data[:_MAX_REASON_BYTES].decode("utf-8", "replace").split())
    for secret in secrets:
        text = text.replace(secret, "…")
    return text
