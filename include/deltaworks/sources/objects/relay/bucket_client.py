"""A client of landing buckets, and S3's words for what an object can have come to."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from deltaworks.specs.storage import StorageSpec

GONE = ("NoSuchKey", "NoSuchVersion", "404")
#: Another content lies at the key than the one that was asked for.
CHANGED = ("PreconditionFailed", "412")
REFUSED = ("AccessDenied", "403", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch")


def bucket_client(storage: StorageSpec, *, read_seconds: int = 60, attempts: int = 5) -> Any:
    """A client in a session of its own, which threads may share and processes may not.

    Args:
        read_seconds: how long an answer is waited for, at each attempt.
    """
    config = Config(
        s3={"addressing_style": "path" if storage.path_style else "auto"},
        connect_timeout=5,
        read_timeout=read_seconds,
        retries={"mode": "standard", "max_attempts": attempts},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config, **storage.boto3_options())
