"""The objects of a bucket, page by page, as file events. Nothing is remembered between pages."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.relay.bucket_client import REFUSED, bucket_client
from deltaworks.sources.objects.relay.messages import FileEvent, is_folder_marker
from deltaworks.sources.outages import error_code, through_outages
from deltaworks.specs.globs import key_pattern
from deltaworks.specs.storage import StorageSpec

LISTED = "ObjectListed"
_PAGE = 1000


def list_pages(
    storage: StorageSpec,
    bucket: str,
    *,
    prefix: str = "",
    glob: str | None = None,
    versions: bool = False,
    patience_seconds: float = 60.0,
    give_up: threading.Event | None = None,
) -> Iterator[list[FileEvent]]:
    """Every object below `prefix` whose key fits `glob`, in the order of keys; up to 1,000 keys are asked for at once.

    Args:
        storage: endpoint, region and keys; on local disk, the folder that stands for the bucket.
        versions: every version of each object that is still there, oldest first, instead of the newest one alone.

    Raises:
        ConfigError: LISTING_REFUSED.
        ClientError, BotoCoreError: the store did not answer for `patience_seconds`.
    """
    fits = key_pattern(glob)
    if storage.scheme == "file":
        pages = _local_pages(Path(storage.prefix), bucket, prefix)
    else:
        pages = _s3_pages(
            storage, bucket, prefix, versions=versions, patience_seconds=patience_seconds, give_up=give_up
        )
    for page in pages:
        yield [each for each in page if fits(each.key) and not is_folder_marker(each.key, each.size)]


def _s3_pages(
    storage: StorageSpec,
    bucket: str,
    prefix: str,
    *,
    versions: bool,
    patience_seconds: float,
    give_up: threading.Event | None,
) -> Iterator[list[FileEvent]]:
    client = bucket_client(storage)
    call = client.list_object_versions if versions else client.list_objects_v2
    position: dict[str, str] = {}
    while True:

        def one_page(after: dict[str, str] = position) -> Any:
            return call(Bucket=bucket, Prefix=prefix, MaxKeys=_PAGE, **after)

        try:
            answer = through_outages(one_page, patience_seconds=patience_seconds, give_up=give_up)
        except ClientError as error:
            if error_code(error) not in REFUSED:
                raise
            raise ConfigError(
                "LISTING_REFUSED",
                f"The bucket {bucket} may not be listed: {error_code(error)}.",
                hint="Check the relay's `buckets`, and grant s3:ListBucket (with overwrites: every_version "
                "s3:ListBucketVersions) to its role.",
            ) from error
        found = answer.get("Versions" if versions else "Contents", [])
        events = [_event(bucket, each) for each in found]
        # Versions of a key are listed newest first; they were made the other way round.
        yield sorted(reversed(events), key=lambda event: event.key) if versions else events
        if not answer.get("IsTruncated"):
            return
        if versions:
            position = {"KeyMarker": answer["NextKeyMarker"], "VersionIdMarker": answer["NextVersionIdMarker"]}
        else:
            position = {"ContinuationToken": answer["NextContinuationToken"]}


def _event(bucket: str, found: dict[str, Any]) -> FileEvent:
    version = found.get("VersionId")
    return FileEvent(
        bucket=bucket,
        key=found["Key"],
        size=int(found["Size"]),
        etag=str(found.get("ETag", "")).strip('"'),
        version_id=None if version in (None, "null") else str(version),
        event_time=found["LastModified"].astimezone(UTC),
        event_name=LISTED,
        sequencer=None,
    )


def _local_pages(root: Path, bucket: str, prefix: str) -> Iterator[list[FileEvent]]:
    """The files below a folder: their tags are digests of what they hold."""
    page: list[FileEvent] = []
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        key = path.relative_to(root).as_posix()
        if not key.startswith(prefix):
            continue
        data, modified = path.read_bytes(), path.stat().st_mtime
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        page.append(FileEvent(bucket, key, len(data), tag, None, datetime.fromtimestamp(modified, UTC), LISTED, None))
        if len(page) == _PAGE:
            yield page
            page = []
    yield page
