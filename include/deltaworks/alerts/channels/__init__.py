"""Channels that deliver notifications to people. All send the same record.

To add one: a spec in `deltaworks.specs.environment`, a module here that creates its sender, and an entry in `SENDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from deltaworks.alerts.channels.senders import (
    Channel,
    ChannelProblem,
    Send,
    boto3_sns_sender,
    log_sender,
    subscription_problems,
    webhook_sender,
)
from deltaworks.specs.environment import AlertsSpec, SnsChannelSpec
from deltaworks.specs.storage import AwsSpec

__all__ = ["SENDERS", "Channel", "Send", "SnsSender", "channel_problems", "open_channels"]

#: Creates the sender of an SNS topic. Airflow tasks use another one.
SnsSender = Callable[[SnsChannelSpec, AwsSpec], Send]

#: Functions that create the sender of a channel from its spec and the environment's `messaging`, by kind.
SENDERS: Final[Mapping[str, Callable[[Any, AwsSpec], Send]]] = {
    "sns": boto3_sns_sender,
    "webhook": webhook_sender,
    "log": log_sender,
}


def open_channels(alerts: AlertsSpec, messaging: AwsSpec, *, sns: SnsSender = boto3_sns_sender) -> list[Channel]:
    """Opens every declared channel. Connects to nothing and reads no secret yet."""
    senders = {**SENDERS, "sns": sns}
    return [
        Channel(spec, _with_runbook_urls(alerts.docs_url, senders[spec.kind](spec, messaging)))
        for spec in alerts.channels
    ]


def channel_problems(channel: Channel, messaging: AwsSpec) -> list[ChannelProblem]:
    """Returns the problems of a channel that can be detected without sending; none for webhooks and logs."""
    return subscription_problems(channel.spec, messaging) if isinstance(channel.spec, SnsChannelSpec) else []


def _with_runbook_urls(docs_url: str, send: Send) -> Send:
    """Wraps a sender so that runbooks become URLs below `docs_url`."""
    if not docs_url:
        return send
    return lambda notification: send(notification.replace(runbook=f"{docs_url.rstrip('/')}/{notification.runbook}"))
