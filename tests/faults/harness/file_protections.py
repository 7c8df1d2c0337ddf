"""Disables single protections of a relay, or of tasks that open objects.

Each one is a change of product functions at run time. pytest's `monkeypatch` undoes it, or it happens in a separate
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Patch = pytest.MonkeyPatch


def switch_off(patch: Patch, names: Sequence[str]) -> None:
    """Disables the named protections.

    Raises:
        KeyError: no protection has this name.
    """
    for name in names:
        FILE_PROTECTIONS[name](patch)


def _identity(patch: Patch) -> None:
    """The log does not deduplicate: each delivery of a message adds a file."""
    from deltaworks.sources.objects import file_event_log_writer

    patch.setattr(file_event_log_writer, "event_identity", lambda *_, **__: os.urandom(16))


def _append_first(patch: Patch) -> None:
    """Messages are deleted when they are received, as connectors do that keep the list in memory."""
    from deltaworks.sources.objects.relay.relay import Appender

    append = Appender.append_messages

    def delete_first(self: Any, messages: Any, queue: Any, intake: Any) -> None:
        queue.delete(messages)
        append(self, messages, queue, intake)

    patch.setattr(Appender, "append_messages", delete_first)


def _visibility(patch: Patch) -> None:
    """The visibility timeout of messages in work is not extended."""
    from deltaworks.sources.objects.relay.intake import Intake

    patch.setattr(Intake, "_extend_periodically", lambda _: None)


def _message_quarantine(patch: Patch) -> None:
    """Unusable messages are deleted without a record."""
    from deltaworks.sources.objects.relay.relay import Appender

    parsed = Appender._parse
    patch.setattr(Appender, "_parse", lambda self, messages: (parsed(self, messages)[0], [], []))


def _entries(patch: Patch) -> None:
    """A successful batch call is treated as successful for all of its entries."""
    from deltaworks.sources.objects.relay.queue import BatchOutcome, NotificationQueue

    def one_batch(_: Any, call: Any, batch: Any, extra: Any, url: str) -> BatchOutcome:
        entries = [{"Id": str(index), "ReceiptHandle": each.receipt, **extra} for index, each in enumerate(batch)]
        call(QueueUrl=url, Entries=entries)
        return BatchOutcome(succeeded=len(batch))

    def send(self: Any, batch: Any) -> list[str]:
        entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(batch)]
        self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        return []

    patch.setattr(NotificationQueue, "_send_batch", send)
    patch.setattr(
        NotificationQueue,
        "_call_batch",
        lambda self, call, batch, extra: one_batch(self, call, batch, extra, self._url),
    )


def _one_relay(patch: Patch) -> None:
    """Every relay gets the lease immediately, and owner epochs are not compared."""
    from deltaworks.control import leased_process
    from deltaworks.control.locks.lease import Lease
    from deltaworks.tables import commit

    patch.setattr(Lease, "_is_free", staticmethod(lambda _: True))
    patch.setattr(leased_process, "watch_lease", lambda *_: None)
    patch.setattr(commit, "check_owner_epoch", lambda *_: None)


def _dead_letter_watch(patch: Patch) -> None:
    """The dead-letter queue is not watched."""
    from deltaworks.sources.objects.relay.queue import NotificationQueue

    patch.setattr(NotificationQueue, "dead_letter_queue", lambda _: None)


def _refusals(patch: Patch) -> None:
    """Every error counts as an outage and is retried."""
    from deltaworks.sources import outages
    from deltaworks.sources.objects.relay import queue

    patch.setattr(outages, "is_outage", lambda _: True)
    patch.setattr(queue, "is_outage", lambda _: True)


def _patience(patch: Patch) -> None:
    """One attempt, no retries."""
    import botocore.config

    from deltaworks.sources.objects import payloads
    from deltaworks.sources.objects.relay import bucket, intake, lister, relay

    def once(call: Callable[[], Any], **_: Any) -> Any:
        return call()

    for module in (relay, bucket, payloads, intake, lister):
        patch.setattr(module, "retry_outages", once)
    plain = botocore.config.Config

    def impatient(**options: Any) -> Any:
        return plain(**{**options, "retries": {"total_max_attempts": 1}})

    patch.setattr(bucket, "Config", impatient)


def _key_decoding(patch: Patch) -> None:
    """Keys are used as they are in messages, without URL decoding."""
    from deltaworks.sources.objects.relay import messages

    patch.setattr(messages, "unquote_plus", lambda text, **_: text)


def _tags(patch: Patch) -> None:
    """An object is read in its current version, regardless of the announced ETag."""
    from deltaworks.sources.objects import payloads

    announced = payloads._read_announced
    patch.setattr(
        payloads, "_read_announced", lambda storage, key, _, __, size: announced(storage, key, "", None, size)
    )


def _object_errors(patch: Patch) -> None:
    """An object that cannot be read fails the task that opens it."""
    from deltaworks.sources.objects import payloads as file_payloads

    patch.setattr(file_payloads, "_OBJECT_ERROR_REASONS", {})


def _log_check(patch: Patch) -> None:
    """Offsets are not checked against the identity of the log."""
    from deltaworks.sources.objects.file_event_log import FileEventLog

    patch.setattr(FileEventLog, "check_position", lambda *_: None)


def _long_patience(patch: Patch) -> None:
    """Retries of a failing storage end after two seconds."""
    from deltaworks.sources.objects import payloads

    patch.setattr(payloads, "_RETRY_SECONDS", 2.0)


FILE_PROTECTIONS: dict[str, Callable[[Patch], None]] = {
    "identity": _identity,
    "append_first": _append_first,
    "visibility": _visibility,
    "message_quarantine": _message_quarantine,
    "entries": _entries,
    "one_relay": _one_relay,
    "dead_letter_watch": _dead_letter_watch,
    "refusals": _refusals,
    "patience": _patience,
    "key_decoding": _key_decoding,
    "tags": _tags,
    "object_errors": _object_errors,
    "log_check": _log_check,
    "long_patience": _long_patience,
}
