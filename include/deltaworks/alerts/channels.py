"""The ways a notice reaches people: a topic of SNS, a webhook, a log. A channel sends one notice, or says it failed.

Each takes the same record. A new channel is a spec in `deltaworks.specs.environment`, a function and a line in
`open_channels`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from deltaworks.alerts.notice import Notice
from deltaworks.errors import TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment import AlertsSpec, LogChannelSpec, SnsChannelSpec, WebhookChannelSpec
from deltaworks.specs.storage import AwsSpec

log = logging.getLogger("deltaworks.alerts")
_LEVELS = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class Send(Protocol):
    """Sends one notice. Raises TransientError CHANNEL_FAILED where it was not taken."""

    def __call__(self, notice: Notice) -> None: ...


#: Makes the sender of a topic: Airflow's side has one of its own.
SnsSender = Callable[[SnsChannelSpec, AwsSpec], Send]


@dataclass(frozen=True, slots=True)
class Channel:
    """A declared channel with what sends on it."""

    spec: SnsChannelSpec | WebhookChannelSpec | LogChannelSpec
    send: Send

    @property
    def name(self) -> str:
        """Its declared name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class SnsMessage:
    """A notice as SNS takes it. `group` and `deduplication_id` are for FIFO topics only."""

    topic: str
    subject: str
    body: str
    attributes: dict[str, str]
    group: str | None = None
    deduplication_id: str | None = None


def sns_message(topic: str, notice: Notice) -> SnsMessage:
    """The notice for a topic. Attributes let subscriptions filter by severity, cause and kind.

    On a FIFO topic a notice of the same id within five minutes is dropped by SNS itself.
    """
    fifo = topic.endswith(".fifo")
    group = hashlib.sha256(f"{notice.cause} {notice.subject}".encode()).hexdigest()[:32]
    return SnsMessage(
        topic=topic,
        subject=notice.title,
        body=json.dumps(notice.record(), indent=2, ensure_ascii=False),
        attributes={"severity": notice.severity, "cause": notice.cause, "kind": notice.kind},
        group=group if fifo else None,
        deduplication_id=notice.id if fifo else None,
    )


def sns_client(messaging: AwsSpec) -> Any:
    """A client that gives up in seconds: whoever raises an alert waits for it."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "max_attempts": 2})
    # Chosen at run time, since the stubs of boto3 are not installed.
    session: Any = boto3.session.Session()
    return session.client("sns", config=config, **messaging.boto3_options())


def boto3_sns(spec: SnsChannelSpec, messaging: AwsSpec) -> Send:
    """The sender outside Airflow."""
    client: Any = None

    def send(notice: Notice) -> None:
        nonlocal client
        from botocore.exceptions import BotoCoreError, ClientError

        message = sns_message(resolve_text(spec.topic), notice)
        fifo = {"MessageGroupId": message.group, "MessageDeduplicationId": message.deduplication_id}
        try:
            client = client or sns_client(messaging)
            client.publish(
                TopicArn=message.topic,
                Subject=message.subject,
                Message=message.body,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items()
                },
                **{name: value for name, value in fifo.items() if value is not None},
            )
        except (BotoCoreError, ClientError) as error:
            raise failed(spec.name, error) from error

    return send


def _webhook(spec: WebhookChannelSpec) -> Send:
    def send(notice: Notice) -> None:
        import httpx

        headers = {"X-Deltaworks-Notice": notice.id}
        if spec.token is not None:
            headers["Authorization"] = f"Bearer {spec.token.resolve()}"
        try:
            answer = httpx.post(
                resolve_text(spec.url), json=notice.record(), headers=headers, timeout=spec.timeout_seconds
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Not the error's own text where it could hold the address, which may be a secret.
            raise failed(spec.name, type(error).__name__) from error
        if answer.status_code >= 300:
            raise failed(spec.name, f"it answered {answer.status_code}")

    return send


def _log(_spec: LogChannelSpec) -> Send:
    def send(notice: Notice) -> None:
        log.log(_LEVELS[notice.severity], "%s: %s", notice.title, notice.text.replace("\n", " "))

    return send


def failed(channel: str, why: object) -> TransientError:
    """The error of a channel that did not take a notice."""
    return TransientError(
        "CHANNEL_FAILED",
        f"The channel {channel!r} did not take a notice: {why}.",
        hint="The notice is kept and sent again. Check the topic, address and keys under `alerts` of the environment.",
    )


def open_channels(alerts: AlertsSpec, messaging: AwsSpec, *, sns: SnsSender = boto3_sns) -> list[Channel]:
    """Every declared channel. No connection is made yet, and no secret read."""
    opened = []
    for spec in alerts.channels:
        if isinstance(spec, SnsChannelSpec):
            send = sns(spec, messaging)
        elif isinstance(spec, WebhookChannelSpec):
            send = _webhook(spec)
        else:
            send = _log(spec)
        opened.append(Channel(spec, _with_pages_of(alerts.docs_url, send)))
    return opened


def _with_pages_of(docs_url: str, send: Send) -> Send:
    """The same sender, with runbooks as addresses below where the pages are read."""
    if not docs_url:
        return send
    return lambda notice: send(dataclasses.replace(notice, runbook=f"{docs_url.rstrip('/')}/{notice.runbook}"))
