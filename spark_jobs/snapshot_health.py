"""The job of the operation `snapshot_health`: `python spark_jobs/snapshot_health.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("snapshot_health"))
