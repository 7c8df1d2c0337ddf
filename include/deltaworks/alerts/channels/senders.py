"""Channels `sns`, `log` and `webhook`, which send the notification's record or its line.

`sns` publishes to a topic and checks its subscriptions, `log` writes to the log of the process that sends
notifications, and `webhook` posts each notification as JSON to a URL.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.channels.channel import ChannelProblem, Send, channel_error, post_json
from deltaworks.alerts.channels.message import MessageContext, runbook_url
from deltaworks.alerts.notification import Notification
from deltaworks.specs.alert_channels import LogChannelSpec, SnsChannelSpec, WebhookChannelSpec
from deltaworks.specs.base import resolve_text
from deltaworks.specs.storage import AwsSpec

#: Details of rule notifications that become message attributes, for filter policies.
_RULE_ATTRIBUTES = ("pipeline", "rule")


@dataclass(frozen=True, slots=True)
class SnsMessage:
    """A message for SNS. `group` and `deduplication_id` are for FIFO topics only."""

    topic: str
    subject: str
    body: str
    attributes: dict[str, str]
    group: str | None = None
    deduplication_id: str | None = None


def sns_message(topic: str, notification: Notification, context: MessageContext) -> SnsMessage:
    """Builds the message for a topic. Attributes let subscriptions filter by severity, cause and kind, and rule
    notifications also by pipeline and rule.

    On a FIFO topic SNS drops a second notification of the same id within five minutes.
    """
    fifo = topic.endswith(".fifo")
    rule_attributes = {
        name: notification.detail.get(name) for name in _RULE_ATTRIBUTES if notification.cause.startswith("RULE_")
    }
    group = hashlib.sha256(f"{notification.cause} {notification.subject}".encode()).hexdigest()[:32]
    return SnsMessage(
        topic=topic,
        subject=notification.title,
        body=json.dumps(published_record(notification, context), indent=2, ensure_ascii=False),
        attributes={"severity": notification.severity, "cause": notification.cause, "kind": notification.kind}
        | {name: value for name, value in rule_attributes.items() if isinstance(value, str) and value},
        group=group if fifo else None,
        deduplication_id=notification.id if fifo else None,
    )


def sns_client(messaging: AwsSpec) -> Any:
    """Creates a client with short timeouts, because raising an alert waits for it."""
    from botocore.config import Config

    from deltaworks.control.objects import aws_session

    config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "max_attempts": 2})
    # The stubs of boto3 are not installed.
    session: Any = aws_session()
    return session.client("sns", config=config, **messaging.boto3_options())


def publish(client: Any, message: SnsMessage) -> None:
    """Publishes a message. Raises boto3's errors."""
    fifo = {"MessageGroupId": message.group, "MessageDeduplicationId": message.deduplication_id}
    client.publish(
        TopicArn=message.topic,
        Subject=message.subject,
        Message=message.body,
        MessageAttributes={
            name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items()
        },
        **{name: value for name, value in fifo.items() if value is not None},
    )


def boto3_sns_sender(spec: SnsChannelSpec, messaging: AwsSpec, context: MessageContext) -> Send:
    """Creates the sender used outside Airflow."""
    client: Any = None

    def send(notification: Notification) -> None:
        nonlocal client
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = client or sns_client(messaging)
            publish(client, sns_message(resolve_text(spec.topic), notification, context))
        except (BotoCoreError, ClientError) as error:
            raise channel_error(spec.name, error) from error

    return send


def subscription_problems(spec: SnsChannelSpec, messaging: AwsSpec) -> list[ChannelProblem]:
    """Returns the problems of a topic: missing, without subscriptions, unconfirmed, or without a dead-letter queue."""
    from botocore.exceptions import BotoCoreError, ClientError

    topic = resolve_text(spec.topic)
    try:
        client = sns_client(messaging)
        pages = client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
        subscriptions = [subscription for page in pages for subscription in page["Subscriptions"]]
        if not subscriptions:
            return [ChannelProblem(f"{topic} has no subscriptions", is_blocking=True)]
        dead_letters = resolve_text(spec.dead_letters) if spec.dead_letters is not None else None
        problems = [_subscription_problem(client, subscription, dead_letters) for subscription in subscriptions]
    except (BotoCoreError, ClientError) as error:
        return [ChannelProblem(f"{topic}: {error}", is_blocking=True)]
    return [problem for problem in problems if problem is not None]


def _subscription_problem(client: Any, subscription: dict[str, str], dead_letters: str | None) -> ChannelProblem | None:
    endpoint = f"{subscription['Protocol']} {subscription['Endpoint']}"
    if not subscription["SubscriptionArn"].startswith("arn:"):
        return ChannelProblem(f"the subscription of {endpoint} is not confirmed")
    response = client.get_subscription_attributes(SubscriptionArn=subscription["SubscriptionArn"])
    policy = response["Attributes"].get("RedrivePolicy")
    if not policy:
        return ChannelProblem(
            f"{endpoint} has no dead-letter queue (RedrivePolicy): SNS drops messages it cannot deliver"
        )
    target = json.loads(policy).get("deadLetterTargetArn")
    if dead_letters is not None and target != dead_letters:
        return ChannelProblem(f"the dead-letter queue of {endpoint} is {target}, but {dead_letters} is declared")
    return None


log = logging.getLogger("deltaworks.alerts")
_LEVELS = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def log_sender(_spec: LogChannelSpec, _context: MessageContext) -> Send:
    """Creates the sender: one line per notification, at the log level of its severity."""

    def send(notification: Notification) -> None:
        log.log(_LEVELS[notification.severity], "%s: %s", notification.title, notification.text.replace("\n", " "))

    return send


def webhook_sender(spec: WebhookChannelSpec, context: MessageContext) -> Send:
    """Creates the sender: the notification's record as JSON, with its id in a header."""

    def send(notification: Notification) -> None:
        headers = {"X-Deltaworks-Notification": notification.id}
        if spec.token is not None:
            headers["Authorization"] = f"Bearer {spec.token.resolve()}"
        post_json(
            spec.name,
            resolve_text(spec.url),
            published_record(notification, context),
            timeout_seconds=spec.timeout_seconds,
            headers=headers,
        )

    return send


def published_record(notification: Notification, context: MessageContext) -> dict[str, Any]:
    """Returns the record of a notification, with the URL of its runbook if the docs are published."""
    url = runbook_url(notification, context)
    return notification.replace(runbook=url).record() if url else notification.record()
