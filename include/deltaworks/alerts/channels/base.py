"""What every channel is made of: its declaration, a function that sends one notification, and the error of a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deltaworks.alerts.notification import Notification
from deltaworks.errors import TransientError
from deltaworks.specs.environment import AnyChannelSpec


class Send(Protocol):
    """Sends one notification. Raises TransientError CHANNEL_FAILED where it was not accepted."""

    def __call__(self, notification: Notification) -> None: ...


@dataclass(frozen=True, slots=True)
class Channel:
    """A declared channel with its sender."""

    spec: AnyChannelSpec
    send: Send

    @property
    def name(self) -> str:
        """Its declared name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ChannelProblem:
    """What is wrong with a channel. `blocks`: nothing would arrive."""

    text: str
    is_blocking: bool = False


def rejection_error(channel: str, why: object) -> TransientError:
    """The error of a channel that did not accept a notification."""
    return TransientError(
        "CHANNEL_FAILED",
        f"The channel {channel!r} did not take a notification: {why}.",
        hint="The notification is kept and sent again. Check the topic, address and keys under `alerts` of the environment.",
    )
