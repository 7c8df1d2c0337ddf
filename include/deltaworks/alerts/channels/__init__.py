"""The ways a notification reaches people, a file each. All take the same record.

A channel is a spec in `deltaworks.specs.environment`, a file here that makes its sender, and a line in `SENDERS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from deltaworks.alerts.channels.base import Channel, ChannelProblem, Send
from deltaworks.alerts.channels.log import log_lines
from deltaworks.alerts.channels.sns import boto3_sns, subscription_problems
from deltaworks.alerts.channels.webhook import webhook
from deltaworks.specs.environment import AlertsSpec, SnsChannelSpec
from deltaworks.specs.storage import AwsSpec

__all__ = ["SENDERS", "Channel", "Send", "SnsSender", "channel_problems", "open_channels"]

#: Makes the sender of a topic: Airflow has one of its own.
SnsSender = Callable[[SnsChannelSpec, AwsSpec], Send]

#: What makes the sender of each kind of channel, from its spec and the environment's `messaging`.
SENDERS: Final[Mapping[str, Callable[[Any, AwsSpec], Send]]] = {
    "sns": boto3_sns,
    "webhook": webhook,
    "log": log_lines,
}


def open_channels(alerts: AlertsSpec, messaging: AwsSpec, *, sns: SnsSender = boto3_sns) -> list[Channel]:
    """Every declared channel. No connection is made yet, and no secret read."""
    senders = {**SENDERS, "sns": sns}
    return [
        Channel(spec, _with_runbook_urls(alerts.docs_url, senders[spec.kind](spec, messaging)))
        for spec in alerts.channels
    ]


def channel_problems(channel: Channel, messaging: AwsSpec) -> list[ChannelProblem]:
    """What is wrong with a channel, as far as can be seen without sending; none for webhooks and logs."""
    return subscription_problems(channel.spec, messaging) if isinstance(channel.spec, SnsChannelSpec) else []


def _with_runbook_urls(docs_url: str, send: Send) -> Send:
    """The same sender, with runbooks as addresses below the one where the pages are read."""
    if not docs_url:
        return send
    return lambda notification: send(
        dataclasses.replace(notification, runbook=f"{docs_url.rstrip('/')}/{notification.runbook}")
    )
