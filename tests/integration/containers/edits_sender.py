"""Lands a file of edits through the landing server's published port, like a producer on the host.

Address and keys come from environment variables with the project's names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from generator.delivery import publish
from generator.replay import replay_lines
from sandbox.servers.landing import LANDING_BUCKET, landing_client


def main(path: Path) -> None:
    """Sends every line of the file."""
    client = landing_client(
        "s3",
        endpoint=os.environ["DELTAWORKS_AWS_ENDPOINT"],
        access_key=os.environ["DELTAWORKS_AWS_ACCESS_KEY"],
        secret_key=os.environ["DELTAWORKS_AWS_SECRET_KEY"],
    )
    sent = publish(replay_lines(path), lambda key, body: client.put_object(Bucket=LANDING_BUCKET, Key=key, Body=body))
    print(sent.objects)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
