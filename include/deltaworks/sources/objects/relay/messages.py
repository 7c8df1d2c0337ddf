"""Parses queue messages: created objects, events to ignore, and problems.

Supports S3 notifications, S3 notifications in SNS envelopes, and EventBridge events. Every record of a message counts.
Only events known to create no object are ignored; an event of another kind is a problem, because it may announce one.
Uses neither network nor clock; `parse_message` never raises.
"""

from __future__ import annotations

import re
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
    EVENT_NOT_UNDERSTOOD = "event_not_understood"
    CLOUDTRAIL_EVENT = "cloudtrail_event"


class IgnoreReason(StrEnum):
    """Reasons to acknowledge a record without a file event."""

    TEST_EVENT = "test_event"
    NOT_CREATED = "not_created"
    FOLDER_MARKER = "folder_marker"
    JOB_MARKER = "job_marker"
    TEMPORARY_OBJECT = "temporary_object"
    EMPTY_OBJECT = "empty_object"


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
        elif (noise := noise_reason(event.key, event.size)) is not None:
            ignored.append(noise)
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


#: Kinds of S3 events that create no object, in the names of S3, MinIO and Ceph.
_NOT_CREATED = (
    "ObjectRemoved:",
    "ObjectRestore:",
    "ObjectTagging:",
    "ObjectAcl:",
    "ObjectAccessed:",
    "ObjectTransition:",
    "ObjectLifecycle:",
    "LifecycleExpiration:",
    "LifecycleTransition",
    "IntelligentTiering",
    "ReducedRedundancyLostObject",
    "Replication:",
    "Scanner:",
    "BucketCreated:",
    "BucketRemoved:",
    "ObjectSynced:Delete",
)
_CREATED = ("ObjectCreated:", "ObjectSynced:Create")
_NOT_CREATED_DETAILS = frozenset(
    {
        "Object Deleted",
        "Object Restore Initiated",
        "Object Restore Completed",
        "Object Restore Expired",
        "Object Storage Class Changed",
        "Object Access Tier Changed",
        "Object ACL Updated",
        "Object Tags Added",
        "Object Tags Deleted",
    }
)
_CLOUDTRAIL_DETAIL = "AWS API Call via CloudTrail"
#: Calls that CloudTrail records and that create no object; and those that do.
_READING_CALLS = ("Get", "Head", "List", "Delete", "Abort", "UploadPart", "CreateMultipartUpload", "Select", "Restore")
_CREATING_CALLS = frozenset({"PutObject", "CopyObject", "CompleteMultipartUpload", "PostObject"})
_JOB_MARKER = re.compile(r"_SUCCESS|_(?:started|committed)_\d+")
_TEMPORARY_FOLDER = "_temporary"
_STAGING_PREFIXES = (".spark-staging", ".hive-staging")
_TEMPORARY_SUFFIX = "._COPYING_"


def noise_reason(key: str, size: int) -> IgnoreReason | None:
    """Returns why an object is known by its name or size to have no events: placeholders for folders, markers and
    temporary objects of Hadoop and Spark jobs, and empty objects. None for other objects.
    """
    *folders, name = key.split("/")
    if (size == 0 and not name) or name.endswith("_$folder$"):
        return IgnoreReason.FOLDER_MARKER
    if any(folder == _TEMPORARY_FOLDER or folder.startswith(_STAGING_PREFIXES) for folder in folders):
        return IgnoreReason.TEMPORARY_OBJECT
    if name.endswith(_TEMPORARY_SUFFIX):
        return IgnoreReason.TEMPORARY_OBJECT
    if _JOB_MARKER.fullmatch(name):
        return IgnoreReason.JOB_MARKER
    return IgnoreReason.EMPTY_OBJECT if size == 0 else None


def _notification_event(record: Any) -> FileEvent | None:
    """Parses one record of an S3 notification. Its keys are form-encoded."""
    if not isinstance(record, dict) or not isinstance(record.get("s3"), dict):
        raise _MessageError(Problem.NOT_AN_S3_MESSAGE)
    name = _text(record, "eventName").removeprefix("s3:")
    if not name.startswith(_CREATED):
        _reject_unless(name.startswith(_NOT_CREATED))
        return None
    s3_object = _mapping(record["s3"], "object")
    try:
        key = unquote_plus(_text(s3_object, "key"), errors="strict")
    except UnicodeDecodeError as error:
        raise _MessageError(Problem.RECORD_MALFORMED) from error
    return FileEvent(
        bucket=_text(_mapping(record["s3"], "bucket"), "name"),
        key=key,
        # MinIO omits the size of an empty object.
        size=0 if record.get("eventSource") == "minio:s3" and "size" not in s3_object else _size(s3_object),
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
    kind = content["detail-type"]
    detail = _mapping(content, "detail")
    if kind == _CLOUDTRAIL_DETAIL:
        _reject_creating_call(detail)
        return None
    if kind != "Object Created":
        _reject_unless(kind in _NOT_CREATED_DETAILS)
        return None
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


def _reject_unless(creates_nothing: bool) -> None:
    """Raises if an event is not known to create no object.

    Raises:
        _MessageError: event_not_understood.
    """
    if not creates_nothing:
        raise _MessageError(Problem.EVENT_NOT_UNDERSTOOD)


def _reject_creating_call(detail: Mapping[str, Any]) -> None:
    """Raises unless an API call is known to have created no object.

    Raises:
        _MessageError: cloudtrail_event, the call created an object, but names neither its ETag nor its size; or
            event_not_understood.
    """
    name = _text(detail, "eventName")
    if name in _CREATING_CALLS and not detail.get("errorCode"):
        raise _MessageError(Problem.CLOUDTRAIL_EVENT)
    _reject_unless(name in _CREATING_CALLS or name.startswith(_READING_CALLS))


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
