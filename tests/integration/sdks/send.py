"""Sends numbered events through an SDK: `send.py segment|rudder URL KEY COUNT RETRIES`; prints the events it gave up
on.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Tracks events one by one, then waits until the SDK's queue is empty."""
    sdk, url, key, count, retries = sys.argv[1:]
    abandoned: list[Any] = []

    def on_error(error: Exception, items: list[Any]) -> None:
        print(repr(error), file=sys.stderr)
        abandoned.extend(items)

    if sdk == "segment":
        from segment.analytics.client import Client
    else:
        from rudderstack.analytics.client import Client
    client = Client(key, host=url, on_error=on_error, max_retries=int(retries), gzip=True, upload_size=20, thread=2)
    for number in range(int(count)):
        client.track("user", "numbered", {"n": number})
        if number % 20 == 0:
            time.sleep(0.02)
    client.flush()
    client.join()
    print(json.dumps({"abandoned": len(abandoned)}))


if __name__ == "__main__":
    main()
