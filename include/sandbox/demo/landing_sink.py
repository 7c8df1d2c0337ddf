"""Puts objects into the landing bucket."""

from __future__ import annotations

import boto3
from tenacity import retry, stop_after_attempt, wait_exponential_jitter

from deltaworks.specs.storage import StorageSpec
from generator.delivery import Sink


def landing_sink(storage: StorageSpec) -> Sink:
    """Returns a sink that stores each object in the bucket of `storage`, with five attempts per put."""
    client = boto3.session.Session().client("s3", **storage.boto3_options())

    @retry(stop=stop_after_attempt(5), wait=wait_exponential_jitter(initial=0.2, max=5), reraise=True)
    def put(key: str, body: bytes) -> None:
        client.put_object(Bucket=storage.bucket, Key=key, Body=body)

    return put
