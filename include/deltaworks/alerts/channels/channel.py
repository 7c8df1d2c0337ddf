"""The interface of channels: a declared channel with its sender and its routes, and what a check finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from deltaworks.alerts.channels.routing import Router
from deltaworks.alerts.notification import Notification
from deltaworks.specs.alert_channels import AnyChannelSpec


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
