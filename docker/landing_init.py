"""Makes what the profile `local` needs on its two servers: the lake's bucket, the landing side wired together, and the
Kinesis streams of declared pipelines.

Safe to repeat. moto forgets everything when it restarts: run this service again then.
"""

from __future__ import annotations

import os
import sys

from botocore.exceptions import ClientError

from sandbox.servers.landing import LAKE_BUCKET, VAULT_BUCKET, create_streams, landing_client, wire_landing
from sandbox.stack.declared_topics import declared_streams
from sandbox.stack.home import StackHome


def main() -> None:
    """Create what is missing."""
    lake = landing_client(
        "s3",
        endpoint=os.environ["DELTAWORKS_LAKE_ENDPOINT"],
        access_key=os.environ["DELTAWORKS_LAKE_ACCESS_KEY"],
        secret_key=os.environ["DELTAWORKS_LAKE_SECRET_KEY"],
    )
    for bucket in (LAKE_BUCKET, VAULT_BUCKET):
        try:
            lake.head_bucket(Bucket=bucket)
        except ClientError:
            lake.create_bucket(Bucket=bucket)
    aws = {
        "endpoint": os.environ["DELTAWORKS_AWS_ENDPOINT"],
        "access_key": os.environ["DELTAWORKS_AWS_ACCESS_KEY"],
        "secret_key": os.environ["DELTAWORKS_AWS_SECRET_KEY"],
    }
    queues = wire_landing(**aws)
    create_streams(landing_client("kinesis", **aws), declared_streams(StackHome.default()))
    sys.stdout.write(f"{LAKE_BUCKET} is there; landed objects are announced on {queues.queue_url}\n")


if __name__ == "__main__":
    main()
