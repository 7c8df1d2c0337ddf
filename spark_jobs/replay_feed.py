"""The job of the operation `replay_feed`: `python spark_jobs/replay_feed.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("replay_feed"))
