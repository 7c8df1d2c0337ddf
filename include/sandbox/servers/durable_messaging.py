"""Persists moto's queues, topics and streams in a journal, and restores them when the process starts.

A message or record is written before a consumer can receive it, and removed when it is deleted or expires. So a killed
process loses none. If the process ends before a deletion is written, the message is delivered again, as SQS may do.
Receive counts and visibility timeouts are not stored, so restored messages are visible immediately.

Declarations (queues, topics, subscriptions, streams with shards and consumers) are written completely after each
request that may have changed them.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

from moto.core.utils import camelcase_to_underscores, unix_time, unix_time_millis
from moto.kinesis.models import Consumer, Record, Shard, Stream, kinesis_backends
from moto.sns.models import sns_backends
from moto.sqs.models import Message, Queue, SQSBackend, sqs_backends

from sandbox.servers import moto_kinesis
from sandbox.servers.landing_journal import LandingJournal
from sandbox.servers.moto_kinesis import LOCK

ACCOUNT = "123456789012"
_MARK = "_deltaworks_durable"
_SERVICE = re.compile(r"/(sqs|sns|kinesis)/aws4_request")
#: Requests that move messages or records without changing a declaration.
_DATA_ACTIONS = frozenset(
    {"SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "PurgeQueue"}
    | {"ChangeMessageVisibility", "ChangeMessageVisibilityBatch", "PutRecord", "PutRecords", "SubscribeToShard"}
)
_QUEUE_ATTRIBUTES = (
    *("ContentBasedDeduplication", "DeduplicationScope", "DelaySeconds", "FifoQueue", "FifoThroughputLimit"),
    *("KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId", "MaximumMessageSize", "MessageRetentionPeriod", "Policy"),
    *("ReceiveMessageWaitTimeSeconds", "VisibilityTimeout", "SqsManagedSseEnabled"),
)
_MESSAGE_FIELDS = (
    *("body", "message_attributes", "system_attributes", "sender_id", "sent_timestamp"),
    *("deduplication_id", "group_id", "sequence_number", "delayed_until"),
)
_TOPIC_FIELDS = (
    *("display_name", "delivery_policy", "kms_master_key_id", "effective_delivery_policy", "_policy_json", "_tags"),
    *("fifo_topic", "content_based_deduplication"),
)
_STREAM_FIELDS = ("stream_mode", "retention_period_hours", "shard_count", "tags", "encryption_type", "key_id")
_SHARD_FIELDS = ("_shard_id", "starting_hash", "ending_hash", "parent", "adjacent_parent", "is_open")


def persist_messages(journal: LandingJournal) -> None:
    """Restores the journal's content into moto and persists later changes. Call it once per process, before serving."""
    _restore_queues(journal)
    _restore_topics(journal)
    _restore_streams(journal)
    _patch_messaging(journal)


def persist_declarations(journal: LandingJournal, service: str) -> None:
    """Writes all current declarations of a service (`sqs`, `sns` or `kinesis`) to the journal."""
    match service:
        case "sqs":
            journal.declare_all("queue", {queue.queue_arn: _describe_queue(queue) for queue in _queues()})
        case "sns":
            topics = [topic for backend in _backends(sns_backends) for topic in backend.topics.values()]
            journal.declare_all("topic", {topic.arn: _fields(topic, _TOPIC_FIELDS) for topic in topics})
            subscriptions = [item for backend in _backends(sns_backends) for item in backend.subscriptions.values()]
            journal.declare_all("subscription", {item.arn: item.attributes for item in subscriptions})
        case "kinesis":
            streams = [stream for backend in _backends(kinesis_backends) for stream in backend.streams.values()]
            with LOCK:
                journal.declare_all("stream", {stream.arn: _describe_stream(stream) for stream in streams})


class DurableDeclarations:
    """WSGI middleware for moto that persists a service's declarations after each request that may have changed them."""

    def __init__(self, moto: Any, journal: LandingJournal) -> None:
        self._moto = moto
        self._journal = journal

    def __call__(self, environ: dict[str, Any], respond: Any) -> Iterable[bytes]:
        """Handles one request."""
        signed = _SERVICE.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None or _is_read_only(environ):
            return cast(Iterable[bytes], self._moto(environ, respond))
        content = b"".join(self._moto(environ, respond))
        persist_declarations(self._journal, signed[1])
        return [content]


def _is_read_only(environ: dict[str, Any]) -> bool:
    """Returns whether a request certainly changes no declaration. False if its headers do not name the action."""
    action = str(environ.get("HTTP_X_AMZ_TARGET", "")).rpartition(".")[2]
    return action in _DATA_ACTIONS or action.startswith(("Get", "List", "Describe"))


def _backends(all_of: Any) -> Iterator[Any]:
    return iter(list(all_of[ACCOUNT].values()))


def _queues() -> Iterator[Any]:
    return (queue for backend in _backends(sqs_backends) for queue in list(backend.queues.values()))


def _fields(item: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


# -- queues ----------------------------------------------------------------------------------------------------------


def _describe_queue(queue: Any) -> dict[str, Any]:
    attributes = {name: getattr(queue, camelcase_to_underscores(name)) for name in _QUEUE_ATTRIBUTES}
    return {"attributes": attributes, "redrive": queue.redrive_policy, "tags": queue.tags}


def _restore_queues(journal: LandingJournal) -> None:
    declared = journal.declarations("queue")
    for arn, content in declared.items():
        region, name = arn.split(":")[3], arn.split(":")[5]
        attributes = {key: value for key, value in content["attributes"].items() if value is not None}
        queue: Any = sqs_backends[ACCOUNT][region].create_queue(name, tags=content["tags"], **attributes)
        for message_id, fields in journal.messages(arn):
            if fields["sent_timestamp"] + 1000 * queue.message_retention_period < unix_time_millis():
                journal.delete_message(message_id)
            else:
                queue._messages.append(_message(message_id, fields))
    # Only after all queues exist, because a queue may be declared before its dead-letter queue.
    for arn, content in declared.items():
        if content["redrive"]:
            backend = sqs_backends[ACCOUNT][arn.split(":")[3]]
            backend.set_queue_attributes(arn.split(":")[5], {"RedrivePolicy": content["redrive"]})


def _message(message_id: str, fields: dict[str, Any]) -> Any:
    message = Message(message_id, fields["body"])
    for name, value in fields.items():
        setattr(message, name, value)
    return message


# -- topics ----------------------------------------------------------------------------------------------------------


def _restore_topics(journal: LandingJournal) -> None:
    for arn, fields in journal.declarations("topic").items():
        topic = sns_backends[ACCOUNT][arn.split(":")[3]].create_topic(arn.split(":")[5])
        for name, value in fields.items():
            setattr(topic, name, value)
    for arn, attributes in journal.declarations("subscription").items():
        backend = sns_backends[ACCOUNT][arn.split(":")[3]]
        subscription = backend.subscribe(attributes["TopicArn"], attributes["Endpoint"], attributes["Protocol"])
        backend.subscriptions.pop(subscription.arn)
        subscription.arn, subscription.attributes = arn, attributes
        backend.subscriptions[arn] = subscription
        if attributes.get("FilterPolicy"):
            backend.set_subscription_attributes(arn, "FilterPolicy", attributes["FilterPolicy"])


# -- streams ---------------------------------------------------------------------------------------------------------


def _describe_stream(stream: Any) -> dict[str, Any]:
    return {
        **_fields(stream, _STREAM_FIELDS),
        "created_at": stream.creation_datetime.timestamp(),
        # As text, because JSON readers would lose digits of the 128-bit hash key bounds.
        "shards": [
            {
                name: str(value) if isinstance(value, int) and not isinstance(value, bool) else value
                for name, value in _fields(shard, _SHARD_FIELDS).items()
            }
            for shard in stream.shards.values()
        ],
        "consumers": [[item.consumer_name, item.consumer_arn, item.created.timestamp()] for item in stream.consumers],
    }


def _restore_streams(journal: LandingJournal) -> None:
    for arn, content in journal.declarations("stream").items():
        backend = kinesis_backends[ACCOUNT][arn.split(":")[3]]
        stream: Any = backend.create_stream(arn.rpartition("/")[2], 1)
        for name in _STREAM_FIELDS:
            setattr(stream, name, content[name])
        stream.creation_datetime = _time(content["created_at"])
        stream.shards = {shard.shard_id: shard for shard in map(_shard, content["shards"])}
        stream.consumers = [_consumer(arn, *fields) for fields in content["consumers"]]
        journal.delete_records(arn, before=unix_time() - stream.retention_period_hours * 3600)
        for shard_id, number, created_at, fields in journal.records(arn):
            stream.shards[shard_id].records[number] = _record(number, created_at, fields)
    # Larger than every earlier number, expired records included, because consumers continue after their last number.
    since_1970 = int(time.time() * 1_000_000) * moto_kinesis._SEQUENCE_NUMBER_STEP
    moto_kinesis._next_sequence_number = itertools.count(
        moto_kinesis._FIRST_NUMBER + since_1970, moto_kinesis._SEQUENCE_NUMBER_STEP
    )


def _shard(fields: dict[str, Any]) -> Any:
    numbers = (int(fields["_shard_id"]), int(fields["starting_hash"]), int(fields["ending_hash"]))
    shard = Shard(*numbers, parent=fields["parent"], adjacent_parent=fields["adjacent_parent"])
    shard.is_open = fields["is_open"]
    return shard


def _consumer(stream_arn: str, name: str, arn: str, created_at: float) -> Any:
    consumer = Consumer(name, ACCOUNT, stream_arn.split(":")[3], stream_arn)
    consumer.consumer_arn, consumer.created = arn, _time(created_at)
    return consumer


def _record(number: int, created_at: float, fields: dict[str, Any]) -> Any:
    record = Record(fields["partition_key"], fields["data"], number, fields["explicit_hash_key"])
    record.created_at, record.created_at_datetime = created_at, _time(created_at)
    return record


def _time(seconds: float) -> datetime:
    # Without a time zone, like all of moto's times.
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


# -- changes -----------------------------------------------------------------------------------------------------------


def _patch_messaging(journal: LandingJournal) -> None:
    if getattr(Queue, _MARK, False):
        raise RuntimeError("this process already writes its messages to another journal")
    add, delete, put = Queue.add_message, Queue.delete_message, Stream.put_record
    purge, remove = SQSBackend.purge_queue, SQSBackend.delete_queue

    def add_message(queue: Any, message: Any) -> None:
        journal.store_message(queue.queue_arn, message.id, _fields(message, _MESSAGE_FIELDS))
        add(queue, message)
        # A FIFO queue drops a second message with the same deduplication id.
        if queue.fifo_queue and message not in queue._messages:
            journal.delete_message(message.id)

    def delete_message(queue: Any, receipt_handle: str) -> None:
        with queue._messages_lock:
            ids = [message.id for message in queue._messages if message.had_receipt_handle(receipt_handle)]
            delete(queue, receipt_handle)
        for message_id in ids:
            journal.delete_message(message_id)

    def purge_queue(backend: Any, queue_name: str) -> None:
        purge(backend, queue_name)
        journal.delete_messages(backend.get_queue(queue_name).queue_arn)

    def delete_queue(backend: Any, queue_name: str) -> None:
        arn = backend.get_queue(queue_name).queue_arn
        remove(backend, queue_name)
        journal.delete_messages(arn)

    def put_record(stream: Any, partition_key: str, explicit_hash_key: str, data: str) -> tuple[str, str]:
        with LOCK:
            number, shard_id = put(stream, partition_key, explicit_hash_key, data)
            record = stream.shards[shard_id].records[int(number)]
            fields = _fields(record, ("partition_key", "data", "explicit_hash_key"))
            journal.store_record(stream.arn, shard_id, int(number), record.created_at, fields)
        return number, shard_id

    corrections: tuple[tuple[type, str, Any], ...] = (
        (Queue, "add_message", add_message),
        (Queue, "delete_message", delete_message),
        (SQSBackend, "purge_queue", purge_queue),
        (SQSBackend, "delete_queue", delete_queue),
        (Stream, "put_record", put_record),
        (Queue, _MARK, True),
    )
    for owner, name, correction in corrections:
        setattr(owner, name, correction)
