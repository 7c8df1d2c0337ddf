"""Sends alerts from Airflow. SNS topics use the amazon provider's notifier; other channels work as outside Airflow.

No provider is imported when a DAG file is parsed.
"""

from __future__ import annotations

import json
import os
from typing import Any

from deltaworks.alerts.channels import MessageContext, Send, project_channels
from deltaworks.alerts.channels.channel import channel_error
from deltaworks.alerts.channels.senders import sns_message
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import flush_alerts
from deltaworks.alerts.sending import SendResult, send_notifications
from deltaworks.control.objects import ObjectStore
from deltaworks.specs.alert_channels import SnsChannelSpec
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import AwsSpec

#: Id of the Airflow connection that is rendered from `messaging` of the environment, for the provider's client.
MESSAGING_CONNECTION = "deltaworks_messaging"


def deliver(objects: ObjectStore, catalog: Catalog) -> SendResult:
    """Queues suppressed notifications that still apply, then sends all pending notifications."""
    flush_alerts(objects)
    return send_notifications(objects, project_channels(catalog, sns=notifier_sns))


def notifier_sns(spec: SnsChannelSpec, messaging: AwsSpec, context: MessageContext) -> Send:
    """Returns a sender that uses the amazon provider: its notifier, or its hook for FIFO topics, whose group and
    deduplication id the notifier does not accept.
    """

    def send(notification: Notification) -> None:
        from airflow.providers.amazon.aws.hooks.sns import SnsHook
        from airflow.providers.amazon.aws.notifications.sns import SnsNotifier

        message = sns_message(resolve_text(spec.topic), notification, context)
        try:
            connection = spec.aws_conn_id or rendered_connection(messaging)
            if message.deduplication_id is None:
                notifier: Any = SnsNotifier(
                    aws_conn_id=connection,
                    region_name=messaging.region,
                    target_arn=message.topic,
                    message=message.body,
                    subject=message.subject,
                    message_attributes=message.attributes,
                )
                notifier.notify({})
                return
            open_hook: Any = SnsHook
            open_hook(aws_conn_id=connection, region_name=messaging.region).publish_to_target(
                target_arn=message.topic,
                message=message.body,
                subject=message.subject,
                message_attributes=message.attributes,
                message_group_id=message.group,
                message_deduplication_id=message.deduplication_id,
            )
        except Exception as error:  # the provider passes on any exception of its client
            raise channel_error(spec.name, error) from error

    return send


def rendered_connection(messaging: AwsSpec) -> str | None:
    """Renders `messaging` as an Airflow connection of this process and returns its id.

    Returns None if the client's default credential chain (role, profile) is to be used.
    """
    if messaging.endpoint is None and messaging.access_key is None:
        return None
    options = messaging.boto3_options()
    extra = {
        "region_name": options["region_name"],
        "endpoint_url": options.get("endpoint_url"),
        "config_kwargs": {"connect_timeout": 3, "read_timeout": 10, "retries": {"max_attempts": 2}},
    }
    connection = {
        "conn_type": "aws",
        "login": options.get("aws_access_key_id"),
        "password": options.get("aws_secret_access_key"),
        "extra": {name: value for name, value in extra.items() if value is not None},
    }
    os.environ[f"AIRFLOW_CONN_{MESSAGING_CONNECTION.upper()}"] = json.dumps(connection)
    return MESSAGING_CONNECTION
