"""Corrects moto where it loses or delays messages: its queues here, Kinesis and SNS in `moto_kinesis`, `moto_fan_out`
and `moto_sns`.

Two differences between moto's queues and SQS lose or delay notifications of landed files:

- Deleting rebuilds a queue's list without its lock. Messages sent meanwhile are lost, and messages that another thread
  deletes meanwhile reappear.
- Receiving computes every attribute of the queue for each message in it, which slows down with the queue's length.
"""

from __future__ import annotations

from typing import Any

from moto.core.utils import unix_time
from moto.sqs.models import Queue, SQSBackend

from sandbox.servers.moto_fan_out import add_fan_out
from sandbox.servers.moto_kinesis import correct_kinesis
from sandbox.servers.moto_sns import correct_sns

_MARK = "_deltaworks_corrected"


def correct_moto() -> None:
    """Patches moto in this process. Idempotent; call it before the first request."""
    correct_kinesis()
    add_fan_out()
    correct_sns()
    if getattr(Queue, _MARK, False):
        return
    delete = Queue.delete_message

    def delete_under_lock(queue: Any, receipt_handle: str) -> None:
        with queue._messages_lock:
            delete(queue, receipt_handle)

    def is_within_retention(backend: Any, queue_name: str, message: Any) -> bool:
        retention_seconds = backend.get_queue(queue_name).message_retention_period
        return bool(retention_seconds + message.sent_timestamp / 1000 > unix_time())

    corrections: tuple[tuple[type, str, Any], ...] = (
        (Queue, "delete_message", delete_under_lock),
        (SQSBackend, "is_message_valid_based_on_retention_period", is_within_retention),
        (Queue, _MARK, True),
    )
    for owner, name, correction in corrections:
        setattr(owner, name, correction)
