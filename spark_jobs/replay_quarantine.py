"""The job of the operation `replay_quarantine`: `python spark_jobs/replay_quarantine.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("replay_quarantine"))
