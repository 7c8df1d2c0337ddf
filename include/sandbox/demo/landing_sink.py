"""Puts objects into landing buckets."""

from __future__ import annotations

from collections.abc import Callable

import boto3
from tenacity import retry, stop_after_attempt, wait_exponential_jitter

from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.storage import StorageSpec
from generator.delivery import Sink


def landing_sink(storage: StorageSpec, *, bucket_of: Callable[[str], str] | None = None) -> Sink:
    """Returns a sink that stores each object, with five attempts per put.

    Args:
        bucket_of: returns the bucket of a key; by default that of `storage`.
    """
    client = boto3.session.Session().client("s3", **storage.boto3_options())

    @retry(stop=stop_after_attempt(5), wait=wait_exponential_jitter(initial=0.2, max=5), reraise=True)
    def put(key: str, body: bytes) -> None:
        client.put_object(Bucket=bucket_of(key) if bucket_of else storage.bucket, Key=key, Body=body)

    return put


def pipelines_sink(catalog: Catalog) -> Sink:
    """Returns a sink that stores each object in the bucket of the pipeline that its key begins with."""
    storage = catalog.environment.landing
    buckets = {
        name: spec.source.bucket for name, spec in catalog.pipelines.items() if isinstance(spec.source, FileSourceSpec)
    }
    return landing_sink(storage, bucket_of=lambda key: buckets.get(key.partition("/")[0], storage.bucket))
