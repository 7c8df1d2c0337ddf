"""Channels that deliver notifications to people. All send the same notification, in the words or format of each.

To add one: a spec in `deltaworks.specs.alert_channels`, a module here that creates its sender, and an entry in
`SENDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from deltaworks.airflow_client.login import airflow_login
from deltaworks.alerts.channels.channel import Channel, ChannelProblem, Router, Send
from deltaworks.alerts.channels.mail import check_mail_server, email_sender
from deltaworks.alerts.channels.message import MessageContext
from deltaworks.alerts.channels.senders import boto3_sns_sender, log_sender, subscription_problems, webhook_sender
from deltaworks.alerts.channels.webhooks import alertmanager_sender, pagerduty_sender, slack_sender, teams_sender
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.alert_channels import AlertsSpec, EmailChannelSpec, SnsChannelSpec
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.storage import AwsSpec

__all__ = [
    "SENDERS",
    "Channel",
    "MessageContext",
    "Send",
    "SnsSender",
    "channel_problems",
    "open_channels",
    "project_channels",
]

#: Creates the sender of an SNS topic. Airflow tasks use another one.
SnsSender = Callable[[SnsChannelSpec, AwsSpec, MessageContext], Send]

#: Path of the console below Airflow's address.
_CONSOLE_PATH: Final = "/deltaworks"
#: Functions that create the sender of a channel from its spec, by kind; `sns` topics need `messaging` too.
SENDERS: Final[Mapping[str, Callable[[Any, MessageContext], Send]]] = {
    "webhook": webhook_sender,
    "slack": slack_sender,
    "teams": teams_sender,
    "pagerduty": pagerduty_sender,
    "alertmanager": alertmanager_sender,
    "email": email_sender,
    "log": log_sender,
}


def open_channels(
    alerts: AlertsSpec,
    messaging: AwsSpec,
    *,
    context: MessageContext | None = None,
    sns: SnsSender = boto3_sns_sender,
) -> list[Channel]:
    """Opens every declared channel. Connects to nothing and reads no secret yet.

    Args:
        context: what messages say in addition; its owners also decide on routes.
    """
    context = context or MessageContext(docs_url=alerts.docs_url)
    router = Router(alerts, context.owners)
    return [
        Channel(
            spec,
            sns(spec, messaging, context) if isinstance(spec, SnsChannelSpec) else SENDERS[spec.kind](spec, context),
            router,
        )
        for spec in alerts.channels
    ]


def project_channels(catalog: Catalog, *, sns: SnsSender = boto3_sns_sender) -> list[Channel]:
    """Opens the channels of a project's environment, with the owners that its routes and messages name."""
    environment = catalog.environment
    context = MessageContext(
        environment=environment.environment,
        docs_url=environment.alerts.docs_url,
        console_url=_console_url(environment),
        owners=catalog.owners,
    )
    return open_channels(environment.alerts, environment.messaging, context=context, sns=sns)


def _console_url(environment: EnvironmentSpec) -> str:
    """Returns the console's URL for people; empty if this process does not know Airflow's."""
    try:
        base = airflow_login(environment).link_base
    except ConfigError:
        return ""
    return f"{base.rstrip('/')}{_CONSOLE_PATH}" if base.startswith(("http://", "https://")) else ""


def channel_problems(channel: Channel, messaging: AwsSpec) -> list[ChannelProblem]:
    """Returns the problems of a channel that can be detected without sending: references without a value, topics, and
    mail servers.
    """
    problems = []
    for key, reference in find_references(channel.spec):
        try:
            reference.resolve()
        except ConfigError as error:
            problems.append(ChannelProblem(f"{key}: {error.message}", is_blocking=True))
    if problems:
        return problems
    if isinstance(channel.spec, SnsChannelSpec):
        return subscription_problems(channel.spec, messaging)
    if isinstance(channel.spec, EmailChannelSpec):
        try:
            check_mail_server(channel.spec)
        except DeltaworksError as error:
            return [ChannelProblem(error.message, is_blocking=True)]
    return []
