"""What every channel is made of: its declaration, a function that sends one notice, and the error of a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deltaworks.alerts.notice import Notice
from deltaworks.errors import TransientError
from deltaworks.specs.environment import AnyChannelSpec


class Send(Protocol):
    """Sends one notice. Raises TransientError CHANNEL_FAILED where it was not accepted."""

    def __call__(self, notice: Notice) -> None: ...


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
    blocks: bool = False


def refused(channel: str, why: object) -> TransientError:
    """The error of a channel that did not accept a notice."""
    return TransientError(
        "CHANNEL_FAILED",
        f"The channel {channel!r} did not take a notice: {why}.",
        hint="The notice is kept and sent again. Check the topic, address and keys under `alerts` of the environment.",
    )
