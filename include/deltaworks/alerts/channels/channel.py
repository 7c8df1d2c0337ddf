"""The interface of channels: a declared channel with its sender and its routes, what a check finds, and how JSON is
posted to its address, within limits and without its secrets in errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from deltaworks.alerts.channels.message import owner_of, subject_names
from deltaworks.alerts.notification import Notification
from deltaworks.errors import ContractError, DeltaworksError, Severity, TransientError
from deltaworks.errors.conditions import severity_rank
from deltaworks.specs.alert_channels import AlertsSpec, AnyChannelSpec, ChannelSpec

#: Is sent on every channel: the route of a failing channel may lead to that channel alone.
CHANNEL_FAILING = "CHANNEL_FAILING"


@dataclass(frozen=True, slots=True)
class Router:
    """The routes of an environment, with the owner of each process by name."""

    alerts: AlertsSpec = field(default_factory=AlertsSpec.defaults)
    owners: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, channel: ChannelSpec, notification: Notification) -> bool:
        """Returns whether a notification is sent on a channel.

        The end of an alert goes to the channels of every severity that was notified since the alert was raised.
        """
        if notification.kind != "resolved":
            return self._accepts_severity(channel, notification, notification.severity)
        severities = notification.notified_severities or (notification.severity,)
        return channel.resolved and any(
            self._accepts_severity(channel, notification, severity) for severity in severities
        )

    def _accepts_severity(self, channel: ChannelSpec, notification: Notification, severity: Severity) -> bool:
        if notification.cause == CHANNEL_FAILING:
            return severity_rank(severity) >= severity_rank(channel.min_severity)
        detail = notification.detail
        return self.alerts.sends_to(
            channel,
            severity=severity,
            owner=owner_of(notification, self.owners),
            pipelines=[name for name in subject_names(notification) if name in self.owners],
            rule=f"{detail['pipeline']}.{detail['rule']}" if detail.get("pipeline") and detail.get("rule") else "",
        )


class Send(Protocol):
    """Sends one notification.

    Raises:
        TransientError: CHANNEL_FAILED if the channel does not accept notifications.
        ContractError: NOTIFICATION_REJECTED if it does not accept this one.
    """

    def __call__(self, notification: Notification) -> None: ...


@dataclass(frozen=True, slots=True)
class Channel:
    """A declared channel with its sender. `router` decides which notifications it gets."""

    spec: AnyChannelSpec
    send: Send
    router: Router = field(default_factory=Router)

    @property
    def name(self) -> str:
        """The declared name of the channel."""
        return self.spec.name

    def accepts(self, notification: Notification) -> bool:
        """Returns whether the notification is sent on this channel."""
        return self.router.accepts(self.spec, notification)


@dataclass(frozen=True, slots=True)
class ChannelProblem:
    """A problem of a channel. `is_blocking` is set if no notification would arrive."""

    text: str
    is_blocking: bool = False


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
