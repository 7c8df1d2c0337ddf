"""Shared types of channels: a spec with its sender, problems, and the error for a rejected notification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deltaworks.alerts.notification import Notification
from deltaworks.errors import TransientError
from deltaworks.specs.environment import AnyChannelSpec


class Send(Protocol):
    """Sends one notification. Raises TransientError CHANNEL_FAILED if it is not accepted."""

    def __call__(self, notification: Notification) -> None: ...


@dataclass(frozen=True, slots=True)
class Channel:
    """A declared channel with its sender."""

    spec: AnyChannelSpec
    send: Send

    @property
    def name(self) -> str:
        """The declared name of the channel."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ChannelProblem:
    """A problem of a channel. `is_blocking` is set if no notification would arrive."""

    text: str
    is_blocking: bool = False


def rejection_error(channel: str, why: object) -> TransientError:
    """Builds the error for a notification that a channel did not accept."""
    return TransientError("CHANNEL_FAILED", f"Channel {channel!r} did not accept a notification: {why}.")
