"""Whether a channel can reach anybody: its topic is there, subscriptions are confirmed, none drops what it cannot
deliver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.channels import Channel, sns_client
from deltaworks.alerts.notice import Notice, notice_id
from deltaworks.control.clock import utc_now
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment import SnsChannelSpec
from deltaworks.specs.storage import AwsSpec


@dataclass(frozen=True, slots=True)
class ChannelProblem:
    """What is wrong with a channel. `blocks` says that nothing would arrive."""

    text: str
    blocks: bool = False


def check_channel(channel: Channel, messaging: AwsSpec) -> list[ChannelProblem]:
    """What is wrong with a channel, as far as can be seen without sending; nothing for webhooks and logs."""
    if not isinstance(channel.spec, SnsChannelSpec):
        return []
    from botocore.exceptions import BotoCoreError, ClientError

    topic = resolve_text(channel.spec.topic)
    try:
        client = sns_client(messaging)
        pages = client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
        found = [each for page in pages for each in page["Subscriptions"]]
        if not found:
            return [ChannelProblem(f"nobody listens to {topic}", blocks=True)]
        wanted = channel.spec.dead_letters
        letters = resolve_text(wanted) if wanted is not None else None
        return [problem for each in found if (problem := _of_subscription(client, each, letters)) is not None]
    except (BotoCoreError, ClientError) as error:
        return [ChannelProblem(f"{topic}: {error}", blocks=True)]


def _of_subscription(client: Any, subscription: dict[str, str], letters: str | None) -> ChannelProblem | None:
    endpoint = f"{subscription['Protocol']} {subscription['Endpoint']}"
    if not subscription["SubscriptionArn"].startswith("arn:"):
        return ChannelProblem(f"the subscription of {endpoint} is not confirmed")
    said = client.get_subscription_attributes(SubscriptionArn=subscription["SubscriptionArn"])["Attributes"]
    policy = said.get("RedrivePolicy")
    if not policy:
        return ChannelProblem(f"{endpoint} has no dead-letter queue (RedrivePolicy): SNS drops what it does not take")
    target = json.loads(policy).get("deadLetterTargetArn")
    if letters is not None and target != letters:
        return ChannelProblem(f"the dead-letter queue of {endpoint} is {target}, and {letters} is declared")
    return None


def trial_notice() -> Notice:
    """A notice that says that it is a trial."""
    now = utc_now()
    return Notice(
        id=notice_id(now),
        kind="raised",
        cause="CHANNEL_FAILING",
        subject="trial",
        severity="critical",
        summary="This is a trial: nothing is wrong, and notices reach you.",
        detail={},
        runbook="alerts.md#channels",
        since=now.isoformat(timespec="seconds"),
        at=now.isoformat(timespec="milliseconds"),
    )
