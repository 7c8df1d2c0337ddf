"""Derives the default region from the queue's URL, and the default location of the state from the query's checkpoint.

Spark passes the checkpoint location to Java sources but not to Python sources; `S3SqsProvider` in include/jars forwards
it.
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
#: Set by `S3SqsProvider`, never by users: `checkpoint/sources/0`.
_CHECKPOINT_OPTION = "sourceCheckpointLocation"
_REGION = r"([a-z]{2}(?:-[a-z]+)+-\d+)"
#: `sqs.eu-west-1.amazonaws.com`, its FIPS, dual-stack and private endpoints, and legacy queue hosts.
_QUEUE_HOST_PATTERNS = (
    re.compile(rf"(?:^|\.)sqs(?:-fips)?\.{_REGION}\."),
    re.compile(rf"^{_REGION}\.queue\.amazonaws\."),
)
_STATE_REQUIRED = (
    "is required: it stores the announced files and the rejected content; messages are deleted from the queue after "
    "that. The default below the query's checkpoint needs the jars of include/jars (`make jars`) on Spark's class path"
)


def region_of(queue_url: str) -> str:
    """Returns the region in a queue's URL. If the URL has none, returns the region configured for AWS clients, or
    `us-east-1`.
    """
    host = urlparse(queue_url).hostname or ""
    for pattern in _QUEUE_HOST_PATTERNS:
        match = pattern.search(host)
        if match is not None:
            return match.group(1)
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def pop_checkpoint(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Splits the options into Spark's checkpoint folder of this source (an empty string if unknown) and the user's
    options.
    """
    user_options = {name: value for name, value in options.items() if name.lower() != _CHECKPOINT_OPTION.lower()}
    checkpoints = [value for name, value in options.items() if name.lower() == _CHECKPOINT_OPTION.lower()]
    return (checkpoints[0] if checkpoints else ""), user_options


def state_root(values: Mapping[str, str], *, queue_url: str, checkpoint: str) -> str:
    """Returns the location of the state.

    Sources of one query that read the same queue use the same state. With separate states, each would miss the messages
    that the other receives.

    Args:
        checkpoint: the source's folder in the query's checkpoint, or empty before the query exists.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, no location is given and the checkpoint cannot be used.
    """
    if values.get(STATE_OPTION):
        return storage_root(values[STATE_OPTION])
    if not checkpoint:
        raise invalid_option(FORMAT, STATE_OPTION, _STATE_REQUIRED)
    sources = storage_root(checkpoint.rstrip("/").rpartition("/")[0])
    if not sources.startswith(("s3://", "file://")):
        raise invalid_option(
            FORMAT,
            STATE_OPTION,
            (f"is required with a checkpoint at {sources}: the state must be on S3 or on a local disk"),
        )
    return f"{sources}/s3_sqs-{hashlib.blake2b(queue_url.encode(), digest_size=8).hexdigest()}"
