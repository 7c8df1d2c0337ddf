"""Where a query's queue is and where its state lies, as far as that is not said by options.

By default the state lies below the query's checkpoint, where each query of a queue has one of its own. Spark tells a
source of Java where that is, and not one of Python: `S3SqsProvider` in include/jars passes it on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from urllib.parse import urlparse

from deltaworks.sources.stream_options import invalid_option, storage_root

FORMAT = "s3-sqs"
STATE_OPTION = "stateLocation"
SCHEMA_LOCATION_OPTION = "inferredSchemaLocation"
#: Given by `S3SqsProvider`, never by people: `checkpoint/sources/0`.
_CHECKPOINT_OPTION = "sourceCheckpointLocation"
_REGION = r"([a-z]{2}(?:-[a-z]+)+-\d+)"
#: `sqs.eu-west-1.amazonaws.com`, its FIPS, dual-stack and private endpoints, and the names queues had before.
_QUEUE_HOST_PATTERNS = (
    re.compile(rf"(?:^|\.)sqs(?:-fips)?\.{_REGION}\."),
    re.compile(rf"^{_REGION}\.queue\.amazonaws\."),
)
_STATE_REQUIRED = (
    "is required: which files were announced, and what could not be read, is kept there. Messages are deleted from the "
    "queue once it is. Below the query's checkpoint, which is the default, it can be only where Spark's class path has "
    "the jars of include/jars (`make jars`)"
)
_STATE_REQUIRED_WITH_SCHEMA = (
    f"is required with {SCHEMA_LOCATION_OPTION}: columns are found in what the queue announces, which is taken into the state before "
    "the query has a checkpoint"
)


def region_of(queue_url: str) -> str:
    """The region a queue's URL names; of a URL that names none, the one AWS' clients are set to, or `us-east-1`."""
    host = urlparse(queue_url).hostname or ""
    for pattern in _QUEUE_HOST_PATTERNS:
        match = pattern.search(host)
        if match is not None:
            return match.group(1)
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def pop_checkpoint(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Where Spark keeps what it knows of this source, or nothing; and the options of people."""
    of_people = {name: value for name, value in options.items() if name.lower() != _CHECKPOINT_OPTION.lower()}
    checkpoints = [value for name, value in options.items() if name.lower() == _CHECKPOINT_OPTION.lower()]
    return (checkpoints[0] if checkpoints else ""), of_people


def state_root(values: Mapping[str, str], *, queue_url: str, checkpoint: str) -> str:
    """Where the state lies.

    Sources of one query that read the same queue share it, or each would miss what the other takes from the queue.

    Args:
        checkpoint: the source's folder in the query's checkpoint, or nothing where there is no query yet.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, it is not said where, and cannot be below the checkpoint.
    """
    if values.get(STATE_OPTION):
        return storage_root(values[STATE_OPTION])
    if not checkpoint:
        raise invalid_option(
            FORMAT, STATE_OPTION, _STATE_REQUIRED_WITH_SCHEMA if values.get(SCHEMA_LOCATION_OPTION) else _STATE_REQUIRED
        )
    sources = storage_root(checkpoint.rstrip("/").rpartition("/")[0])
    if not sources.startswith(("s3://", "file://")):
        raise invalid_option(
            FORMAT, STATE_OPTION, f"is required with a checkpoint at {sources}: states are on S3 or on a disk"
        )
    return f"{sources}/s3_sqs-{hashlib.blake2b(queue_url.encode(), digest_size=8).hexdigest()}"
