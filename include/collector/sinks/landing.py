"""Puts packed objects into a landing bucket, each once, despite lost replies and crashes."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

from collector.packing import PackedObject, SpooledEvent, lines_checksum, pack, with_checksum_key
from deltaworks.specs.storage import StorageSpec

log = logging.getLogger(__name__)
_EXISTS_CODES = frozenset({"PreconditionFailed", "412"})


class KeyConflictError(Exception):
    """Another object exists under the key."""


class LandingSink:
    """Puts objects into a landing bucket. Thread-safe if its client is."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def put(self, item: PackedObject) -> None:
        """Creates an object. Idempotent: succeeds if the same object exists.

        Metadata identifies the object, or its content if the store keeps no metadata. The ETag does not, because zlib
        versions differ.

        Raises:
            KeyConflictError: the existing object has other events.
            BotoCoreError, ClientError: the store refused or did not answer; it may have the object.
        """
        from botocore.exceptions import ClientError

        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=item.plan.key,
                Body=item.body,
                Metadata=item.metadata,
                ContentType="application/x-ndjson",
                IfNoneMatch="*",
            )
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code", "")) not in _EXISTS_CODES:
                raise
            if not self._is_same_object(item):
                raise KeyConflictError(f"{item.plan.key} holds other events") from error

    def _is_same_object(self, item: PackedObject) -> bool:
        metadata = self._client.head_object(Bucket=self._bucket, Key=item.plan.key).get("Metadata") or {}
        if "crc" in metadata:
            return {name: metadata.get(name) for name in item.metadata} == item.metadata
        body = self._client.get_object(Bucket=self._bucket, Key=item.plan.key)["Body"].read()
        try:
            return lines_checksum(body) == item.crc
        except (OSError, EOFError, zlib.error):
            return False


def landing_client(storage: StorageSpec) -> Any:
    """Creates a client with short timeouts, because callers retry indefinitely and report failures."""
    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path" if storage.path_style else "auto"},
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "max_attempts": 2},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config, **storage.boto3_options())


def repack_with_checksum_key(item: PackedObject, events: Sequence[SpooledEvent]) -> PackedObject:
    """Repacks the events under a key with a checksum, because another object exists under their key.

    That happens if a spool was copied or restored from a backup: two collectors then use the same numbers.
    """
    plan = with_checksum_key(item.plan, item.crc)
    log.error("%s has events of another collector with the same id; these events land as %s", item.plan.key, plan.key)
    return pack(plan, events)
