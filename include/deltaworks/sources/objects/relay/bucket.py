"""Accesses landing buckets by the S3 API: error codes, retention and listings.

Listings yield objects page by page as file events. No state is kept between pages.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError

from deltaworks.control.objects import aws_session
from deltaworks.errors import ConfigError
from deltaworks.sources.objects.relay.messages import FileEvent, noise_reason
from deltaworks.sources.outages import error_code, retry_outages
from deltaworks.specs.sources import key_matcher
from deltaworks.specs.storage import StorageSpec

MISSING_CODES = ("NoSuchKey", "NoSuchVersion", "404")
#: The object at the key is not the requested one.
CHANGED_CODES = ("PreconditionFailed", "412")
FORBIDDEN_CODES = ("AccessDenied", "403", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_DAY_SECONDS = 86_400.0
_NO_LIFECYCLE_CODE = "NoSuchLifecycleConfiguration"
LISTED_EVENT_NAME = "ObjectListed"
_KEYS_PER_PAGE = 1000


def bucket_client(storage: StorageSpec, *, read_seconds: int = 60, attempts: int = 5) -> Any:
    """Creates a client in its own session. Threads may share it, processes may not.

    Args:
        read_seconds: read timeout of each attempt.
    """
    config = Config(
        s3={"addressing_style": "path" if storage.path_style else "auto"},
        connect_timeout=5,
        read_timeout=read_seconds,
        retries={"mode": "standard", "max_attempts": attempts},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return aws_session().client("s3", config=config, **storage.boto3_options())


def bucket_retention_seconds(storage: StorageSpec, bucket: str, prefix: str) -> float | None:
    """Returns after how many seconds objects with the prefix expire, by the bucket's lifecycle rules; None without a
    rule.

    Makes a single attempt with a short timeout, because the caller must react to a stop request. A local folder has no
    rules.

    Raises:
        botocore.exceptions.BotoCoreError, ClientError: permission is missing, or the store has no lifecycle rules.
    """
    if storage.scheme == "file":
        return None
    try:
        client = bucket_client(storage, read_seconds=5, attempts=1)
        response = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] == _NO_LIFECYCLE_CODE:
            return None
        raise
    return shortest_expiry_seconds(response["Rules"], prefix)


def shortest_expiry_seconds(rules: Iterable[Mapping[str, Any]], prefix: str) -> float | None:
    """Returns the shortest expiration in seconds of the lifecycle rules, which have S3's format; None without one.

    A rule restricted by tags or sizes is assumed to apply to every object.
    """
    days = [
        rule["Expiration"]["Days"]
        for rule in rules
        if rule["Status"] == "Enabled" and "Days" in rule.get("Expiration", {}) and _applies_to(rule, prefix)
    ]
    return min(days) * _DAY_SECONDS if days else None


def _applies_to(rule: Mapping[str, Any], prefix: str) -> bool:
    rule_filter = rule.get("Filter", {})
    rule_prefix = str(rule.get("Prefix") or rule_filter.get("Prefix") or rule_filter.get("And", {}).get("Prefix") or "")
    return prefix.startswith(rule_prefix) or rule_prefix.startswith(prefix)


def list_pages(
    storage: StorageSpec,
    bucket: str,
    *,
    prefix: str = "",
    glob: str | None = None,
    start_after: str = "",
    versions: bool = False,
    retry_seconds: float = 60.0,
    cancelled: threading.Event | None = None,
) -> Iterator[list[FileEvent]]:
    """Yields pages of the objects whose key begins with `prefix` and matches `glob`, in key order; up to 1,000 keys per
    request.

    Args:
        storage: endpoint, region and keys; on local disk, the folder that represents the bucket.
        start_after: list only greater keys, in the order of their UTF-8 bytes; not with `versions`.
        versions: list every existing version of each object, oldest first, instead of the latest.

    Raises:
        ConfigError: LISTING_REFUSED.
        ClientError, BotoCoreError: the store did not answer for `retry_seconds`.
    """
    matches = key_matcher(glob)
    if storage.scheme == "file":
        pages = _local_pages(Path(storage.prefix), bucket, prefix, start_after)
    else:
        pages = _s3_pages(
            storage,
            bucket,
            prefix,
            start_after=start_after,
            versions=versions,
            retry_seconds=retry_seconds,
            cancelled=cancelled,
        )
    for page in pages:
        yield [event for event in page if matches(event.key) and noise_reason(event.key, event.size) is None]


def _s3_pages(
    storage: StorageSpec,
    bucket: str,
    prefix: str,
    *,
    start_after: str,
    versions: bool,
    retry_seconds: float,
    cancelled: threading.Event | None,
) -> Iterator[list[FileEvent]]:
    client = bucket_client(storage)
    call = client.list_object_versions if versions else client.list_objects_v2
    position = {"StartAfter": start_after} if start_after else {}
    while True:

        def list_page(after: dict[str, str] = position) -> Any:
            return call(Bucket=bucket, Prefix=prefix, MaxKeys=_KEYS_PER_PAGE, **after)

        try:
            response = retry_outages(list_page, retry_seconds=retry_seconds, cancelled=cancelled)
        except ClientError as error:
            if error_code(error) not in FORBIDDEN_CODES:
                raise
            raise ConfigError(
                "LISTING_REFUSED", f"The bucket {bucket} may not be listed: {error_code(error)}."
            ) from error
        entries = response.get("Versions" if versions else "Contents", [])
        events = [_event(bucket, entry) for entry in entries]
        # S3 lists the versions of a key latest first.
        yield sorted(reversed(events), key=lambda event: event.key) if versions else events
        if not response.get("IsTruncated"):
            return
        if versions:
            position = {"KeyMarker": response["NextKeyMarker"], "VersionIdMarker": response["NextVersionIdMarker"]}
        else:
            position = {"ContinuationToken": response["NextContinuationToken"]}


def _event(bucket: str, entry: dict[str, Any]) -> FileEvent:
    version = entry.get("VersionId")
    return FileEvent(
        bucket=bucket,
        key=entry["Key"],
        size=int(entry["Size"]),
        etag=str(entry.get("ETag", "")).strip('"'),
        version_id=None if version in (None, "null") else str(version),
        event_time=entry["LastModified"].astimezone(UTC),
        event_name=LISTED_EVENT_NAME,
        sequencer=None,
    )


def _local_pages(root: Path, bucket: str, prefix: str, start_after: str) -> Iterator[list[FileEvent]]:
    """Yields the files below a folder; their ETags are digests of their content."""
    page: list[FileEvent] = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        key = path.relative_to(root).as_posix()
        if not key.startswith(prefix) or key.encode() <= start_after.encode():
            continue
        data, modified = path.read_bytes(), path.stat().st_mtime
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        page.append(
            FileEvent(bucket, key, len(data), tag, None, datetime.fromtimestamp(modified, UTC), LISTED_EVENT_NAME, None)
        )
        if len(page) == _KEYS_PER_PAGE:
            yield page
            page = []
    yield page
