"""Parses queue messages: created objects, events to ignore, and problems.

Supports S3 notifications, S3 notifications in SNS envelopes, and EventBridge events. Every record of a message counts.
Uses neither network nor clock; `parse_message` never raises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import unquote_plus

import orjson

from deltaworks.sources.objects.object_names import is_valid_bucket, is_valid_etag, is_valid_key, is_valid_version_id

_MAX_LONG = (1 << 63) - 1
#: Accepts events of any bucket, in place of a relay's buckets.
ANY_BUCKET = "*"


class Problem(StrEnum):
    """Reasons to quarantine a message."""

    NOT_JSON = "not_json"
    NOT_AN_S3_MESSAGE = "not_an_s3_message"
    SNS_CONTROL_MESSAGE = "sns_control_message"
    RECORD_MALFORMED = "record_malformed"
    UNSAFE_KEY = "unsafe_key"
    UNSAFE_TAG = "unsafe_tag"
    FOREIGN_BUCKET = "foreign_bucket"


class IgnoreReason(StrEnum):
    """Reasons to acknowledge a record without a file event."""

    TEST_EVENT = "test_event"
    NOT_CREATED = "not_created"
    FOLDER_MARKER = "folder_marker"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """An object that was created. `key` is decoded, `etag` is without quotes, `event_time` is UTC."""

    bucket: str
    key: str
    size: int
    etag: str
    version_id: str | None
    event_time: datetime
    event_name: str
    sequencer: str | None


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """The content of a queue message. A message with problems is quarantined; its valid events are appended
    nevertheless.
    """

    events: tuple[FileEvent, ...] = ()
    ignored: tuple[IgnoreReason, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def reason(self) -> str:
        """The problems as text for the quarantine table: distinct, sorted, comma-separated."""
        return ",".join(sorted(set(self.problems)))


class _MessageError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def parse_message(body: str, *, buckets: Collection[str]) -> ParsedMessage:
    """Parses one message body.

    Args:
        buckets: the relay's buckets; events of other buckets are a problem.
    """
    try:
        content = _content(body)
        if content.get("Event") == "s3:TestEvent":
            return ParsedMessage(ignored=(IgnoreReason.TEST_EVENT,))
        if "detail-type" in content:
            return _collect([content], _event_bridge_event, buckets)
        return _collect(_records(content), _notification_event, buckets)
    except _MessageError as unusable:
        return ParsedMessage(problems=(unusable.problem,))


def _content(body: str) -> dict[str, Any]:
    """Returns the S3 message, extracted from an SNS envelope if necessary."""
    content = _json_object(body)
    if "TopicArn" not in content or "Message" not in content:
        return content
    if content.get("Type", "Notification") != "Notification":
        raise _MessageError(Problem.SNS_CONTROL_MESSAGE)
    return _json_object(content["Message"])


def _json_object(text: Any) -> dict[str, Any]:
    try:
        content = orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise _MessageError(Problem.NOT_JSON) from error
    if not isinstance(content, dict):
        raise _MessageError(Problem.NOT_AN_S3_MESSAGE)
    return content


def _records(content: Mapping[str, Any]) -> list[Any]:
    records = content.get("Records")
    if not isinstance(records, list) or not records:
        raise _MessageError(Problem.NOT_AN_S3_MESSAGE)
    return records


def _collect(records: list[Any], parse: Any, buckets: Collection[str]) -> ParsedMessage:
    events: list[FileEvent] = []
    ignored: list[IgnoreReason] = []
    problems: list[Problem] = []
    for record in records:
        try:
            event: FileEvent | None = parse(record)
            if event is not None:
                _reject_unsafe_names(event)
        except _MessageError as unusable:
            problems.append(unusable.problem)
            continue
        if event is None:
            ignored.append(IgnoreReason.NOT_CREATED)
        elif is_folder_marker(event.key, event.size):
            ignored.append(IgnoreReason.FOLDER_MARKER)
        elif event.bucket not in buckets and ANY_BUCKET not in buckets:
            problems.append(Problem.FOREIGN_BUCKET)
        else:
            events.append(event)
    return ParsedMessage(events=tuple(events), ignored=tuple(ignored), problems=tuple(problems))


def _reject_unsafe_names(event: FileEvent) -> None:
    """Rejects names that cannot be requested from S3, or would request another object."""
    if not is_valid_bucket(event.bucket):
        raise _MessageError(Problem.FOREIGN_BUCKET)
    if not is_valid_key(event.key):
        raise _MessageError(Problem.UNSAFE_KEY)
    if not is_valid_etag(event.etag) or not is_valid_version_id(event.version_id):
        raise _MessageError(Problem.UNSAFE_TAG)


def is_folder_marker(key: str, size: int) -> bool:
    """Returns whether the object is an empty placeholder for a folder, as consoles and S3 file systems create it."""
    return size == 0 and key.endswith("/")


def _notification_event(record: Any) -> FileEvent | None:
    """Parses one record of an S3 notification. Its keys are form-encoded."""
    if not isinstance(record, dict) or not isinstance(record.get("s3"), dict):
        raise _MessageError(Problem.NOT_AN_S3_MESSAGE)
    name = _text(record, "eventName").removeprefix("s3:")
    if not name.startswith("ObjectCreated:"):
        return None
    s3_object = _mapping(record["s3"], "object")
    try:
        key = unquote_plus(_text(s3_object, "key"), errors="strict")
    except UnicodeDecodeError as error:
        raise _MessageError(Problem.RECORD_MALFORMED) from error
    return FileEvent(
        bucket=_text(_mapping(record["s3"], "bucket"), "name"),
        key=key,
        size=_size(s3_object),
        etag=_etag(s3_object.get("eTag")),
        version_id=_optional_text(s3_object.get("versionId")),
        event_time=_parse_time(_text(record, "eventTime")),
        event_name=name,
        sequencer=_optional_text(s3_object.get("sequencer")),
    )


def _event_bridge_event(content: Any) -> FileEvent | None:
    """Parses an EventBridge event. Its keys are not encoded."""
    if content.get("source") != "aws.s3":
        raise _MessageError(Problem.NOT_AN_S3_MESSAGE)
    if content["detail-type"] != "Object Created":
        return None
    detail = _mapping(content, "detail")
    s3_object = _mapping(detail, "object")
    return FileEvent(
        bucket=_text(_mapping(detail, "bucket"), "name"),
        key=_text(s3_object, "key"),
        size=_size(s3_object),
        etag=_etag(s3_object.get("etag")),
        version_id=_optional_text(s3_object.get("version-id")),
        event_time=_parse_time(_text(content, "time")),
        event_name=f"ObjectCreated:{detail.get('reason') or 'unknown'}",
        sequencer=_optional_text(s3_object.get("sequencer")),
    )


def _mapping(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise _MessageError(Problem.RECORD_MALFORMED)
    return value


def _text(parent: Mapping[str, Any], name: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str) or not value:
        raise _MessageError(Problem.RECORD_MALFORMED)
    return value


def _optional_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _etag(value: Any) -> str:
    """Returns the ETag without quotes: listings and some servers add them, notifications do not."""
    return value.strip('"') if isinstance(value, str) else ""


def _size(s3_object: Mapping[str, Any]) -> int:
    value = s3_object.get("size")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_LONG:
        raise _MessageError(Problem.RECORD_MALFORMED)
    return value


def _parse_time(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _MessageError(Problem.RECORD_MALFORMED) from error
