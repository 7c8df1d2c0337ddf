"""Corrects moto's SNS where it loses messages that one subscriber does not accept.

moto fails the whole publish at the first subscription whose queue is missing or whose endpoint does not respond, so
later subscriptions get nothing. SNS delivers to each subscription independently. A message that it cannot deliver goes
to the queue in the subscription's `RedrivePolicy`, or is dropped without one. SNS retries for minutes to days before;
here delivery is attempted once.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from moto.sns.models import Subscription
from moto.sqs.models import sqs_backends

log = logging.getLogger(__name__)
_MARK = "_deltaworks_redrive"


def correct_sns() -> None:
    """Patches moto in this process. Idempotent; call it before the first request."""
    if getattr(Subscription, _MARK, False):
        return
    publish = Subscription.publish

    def publish_or_redrive(subscription: Any, message: str, message_id: str, **said: Any) -> None:
        try:
            publish(subscription, message, message_id, **said)
        except Exception as error:  # as in SNS, a failing subscriber does not affect others
            log.warning("%s is not delivered to %s: %s", message_id, subscription.endpoint, error)
            _redrive(subscription, message, message_id, said)

    for name, correction in (("publish", publish_or_redrive), (_MARK, True)):
        setattr(Subscription, name, correction)


def _redrive(subscription: Any, message: str, message_id: str, options: dict[str, Any]) -> None:
    """Sends the message to the subscription's dead-letter queue, if it has one, with the body the subscriber
    would get."""
    policy = subscription.attributes.get("RedrivePolicy")
    if not policy:
        return
    arn = json.loads(policy)["deadLetterTargetArn"]
    if options.get("message_structure") == "json":
        message = subscription._parse_message_structure(message, subscription.protocol)
    body = message
    if not subscription.attributes.get("RawMessageDelivery"):
        attributes = options.get("message_attributes")
        body = json.dumps(
            subscription.get_post_data(message, message_id, options.get("subject"), message_attributes=attributes)
        )
    sqs_backends[subscription.account_id][arn.split(":")[3]].send_message(arn.split(":")[-1], body)
