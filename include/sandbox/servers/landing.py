"""Creates the landing resources as on AWS: a bucket that publishes object notifications through SNS to an SQS queue.

Also counts list requests in the server's request log; tests use it to prove that nothing lists the bucket.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.control.objects import aws_session

LAKE_BUCKET = "deltaworks-lake"
#: Encrypted original values of tokens, separate from the lake.
VAULT_BUCKET = "deltaworks-vault"
LANDING_BUCKET = "deltaworks-landing"
#: A bucket without notifications, whose relay lists it.
PARTNERS_BUCKET = "deltaworks-partners"
LANDING_TOPIC = "deltaworks-landing"
LANDING_QUEUE = "deltaworks-landing"
LANDING_DEAD_QUEUE = "deltaworks-landing-dead"
#: Targets of the feeds of pipeline `games`. Their consumer, a shop, is not part of the stack.
OFFERS_QUEUE, PLAYER_OFFERS_QUEUE = "deltaworks-offers", "deltaworks-player-offers"
#: Target of the feed of pipeline `video_qos`, for a support desk.
PROBLEM_VIEWERS_QUEUE = "deltaworks-problem-viewers"
MAX_RECEIVES = 5
_ACCOUNT = "123456789012"
# A GET of a bucket with one of these parameters reads its settings; without one it lists objects.
_SUBRESOURCES = frozenset(
    {"acl", "cors", "encryption", "lifecycle", "location", "logging", "notification", "policy", "tagging"}
    | {"accelerate", "object-lock", "publicAccessBlock", "replication", "uploads", "versioning", "website"}
)
_REQUEST = re.compile(r"^(?P<at>\S+) (?P<method>[A-Z]+) (?P<host>\S+) (?P<target>\S+) (?P<status>\S+)$")


@dataclass(frozen=True, slots=True)
class LandingQueues:
    """The queue of object notifications, and its dead-letter queue."""

    queue_url: str
    dead_letter_url: str


def queue_url(endpoint: str, queue: str = LANDING_QUEUE) -> str:
    """Returns the URL of a queue on the embedded server."""
    return f"{endpoint}/{_ACCOUNT}/{queue}"


def landing_client(service: str, *, endpoint: str, access_key: str, secret_key: str, region: str = "us-east-1") -> Any:
    """Creates a boto3 client for the embedded AWS services."""
    # The type stubs need a literal service name, but here it is chosen at run time.
    session: Any = aws_session()
    return session.client(
        service,
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=region,
        config=Config(
            connect_timeout=5, read_timeout=30, retries={"mode": "standard"}, s3={"addressing_style": "path"}
        ),
    )


def wire_landing(*, endpoint: str, access_key: str, secret_key: str, region: str = "us-east-1") -> LandingQueues:
    """Creates both buckets, topic, queues, subscription, the notification of the landing bucket, and the target queue
    of the feed of `games`.

    Idempotent; deletes nothing.
    """

    def client(service: str) -> Any:
        return landing_client(service, endpoint=endpoint, access_key=access_key, secret_key=secret_key, region=region)

    s3, sns, sqs = client("s3"), client("sns"), client("sqs")
    dead_url = sqs.create_queue(QueueName=LANDING_DEAD_QUEUE)["QueueUrl"]
    redrive = {"deadLetterTargetArn": _queue_arn(sqs, dead_url), "maxReceiveCount": MAX_RECEIVES}
    queue = sqs.create_queue(QueueName=LANDING_QUEUE)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(redrive)})
    for name in (OFFERS_QUEUE, PLAYER_OFFERS_QUEUE, PROBLEM_VIEWERS_QUEUE):
        sqs.create_queue(QueueName=name)
    topic = sns.create_topic(Name=LANDING_TOPIC)["TopicArn"]
    # No raw delivery: messages have SNS's envelope around S3's event, the default on AWS.
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=_queue_arn(sqs, queue))
    for bucket in (LANDING_BUCKET, PARTNERS_BUCKET):
        s3.create_bucket(Bucket=bucket)
    s3.put_bucket_notification_configuration(
        Bucket=LANDING_BUCKET,
        NotificationConfiguration={
            "TopicConfigurations": [{"Id": "landing", "TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}]
        },
    )
    return LandingQueues(queue, dead_url)


def create_streams(kinesis: Any, names: Sequence[str]) -> list[str]:
    """Creates missing Kinesis streams with one shard each; returns their names."""
    created = []
    for name in names:
        with contextlib.suppress(kinesis.exceptions.ResourceInUseException):
            kinesis.create_stream(StreamName=name, ShardCount=1)
            created.append(name)
    return created


def _queue_arn(sqs: Any, url: str) -> str:
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def is_wired(*, endpoint: str, access_key: str, secret_key: str) -> bool:
    """Returns whether the server responds and the landing bucket has its notification configuration."""
    s3 = landing_client("s3", endpoint=endpoint, access_key=access_key, secret_key=secret_key)
    try:
        answer = s3.get_bucket_notification_configuration(Bucket=LANDING_BUCKET)
    except (BotoCoreError, ClientError):
        return False
    return bool(answer.get("TopicConfigurations"))


def list_requests(log_path: Path, *, bucket: str = LANDING_BUCKET, since: datetime | None = None) -> int:
    """Counts the answered requests that listed the bucket's objects or versions.

    Reads the request log and its rotated files.

    Args:
        log_path: the log that `sandbox.servers.moto_server` writes.
        since: counts requests from this time on (with time zone); by default all.
    """
    return sum(
        1
        for at, method, host, target in _requests(log_path)
        if (since is None or at >= since) and _is_list(method, host, target, bucket)
    )


def _requests(log_path: Path) -> Iterator[tuple[datetime, str, str, str]]:
    for path in [log_path, *log_path.parent.glob(f"{log_path.name}.*")]:
        if not path.exists():
            continue
        with path.open(errors="replace") as lines:
            for line in lines:
                if match := _REQUEST.match(line.rstrip("\n")):
                    at = datetime.fromisoformat(match["at"]).replace(tzinfo=UTC)
                    yield at, match["method"], match["host"], match["target"]


def _is_list(method: str, host: str, target: str, bucket: str) -> bool:
    parts = urlsplit(target)
    # The bucket is the first path segment, or the first label of the host.
    whole_bucket = parts.path.rstrip("/") == f"/{bucket}" or (parts.path in ("", "/") and host.startswith(f"{bucket}."))
    if method != "GET" or not whole_bucket:
        return False
    subresources = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    return not subresources & _SUBRESOURCES
