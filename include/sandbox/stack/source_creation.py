"""Creates what declared pipelines need on the servers of this machine: buckets, Kafka topics, Kinesis streams and
sample IP databases.

`make up` calls it, and the service `landing-init` of docker-compose.yaml runs it as a program. Idempotent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from sandbox.servers.kafka_broker import create_topics
from sandbox.servers.landing import (
    LAKE_BUCKET,
    LANDING_BUCKET,
    PARTNERS_BUCKET,
    VAULT_BUCKET,
    create_streams,
    landing_client,
)
from sandbox.stack.declared_topics import declared_streams, declared_topics
from sandbox.stack.environment import KAFKA_BOOTSTRAP
from sandbox.stack.home import StackHome
from sandbox.stack.sample_databases import put_sample_databases


def create_sources(home: StackHome, progress: Callable[[str], None]) -> None:
    """Creates missing buckets and sources. A stream that starts without its topic retries only after minutes.

    Addresses, keys and the pipelines to run come from this process's environment variables.
    """
    _create_buckets()
    if created_streams := create_streams(_client("kinesis", "AWS"), declared_streams(home)):
        progress(f"Created Kinesis streams: {', '.join(created_streams)}")
    if databases := put_sample_databases(home):
        progress(f"Put sample IP databases with generated networks: {', '.join(databases)}")
    bootstrap, topics = os.environ.get(KAFKA_BOOTSTRAP), declared_topics(home)
    if topics and bootstrap is None:
        progress("Warning: a pipeline reads Kafka, but this stack was started without a broker. Run `deltaworks up`.")
    elif bootstrap is not None and topics and (created := create_topics(bootstrap, topics)):
        progress(f"Created topics: {', '.join(created)}")


def _create_buckets() -> None:
    """Creates the missing buckets for lake, landed objects and vault in the store."""
    store = _client("s3", "LAKE")
    for bucket in (LAKE_BUCKET, LANDING_BUCKET, PARTNERS_BUCKET, VAULT_BUCKET):
        try:
            store.head_bucket(Bucket=bucket)
        except ClientError:
            store.create_bucket(Bucket=bucket)


def _client(service: str, server: str) -> Any:
    names = ("endpoint", "access_key", "secret_key")
    return landing_client(service, **{name: os.environ[f"DELTAWORKS_{server}_{name.upper()}"] for name in names})


if __name__ == "__main__":
    create_sources(StackHome.default(), lambda line: print(line, flush=True))
