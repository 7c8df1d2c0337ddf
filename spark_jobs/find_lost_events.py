"""The job of the operation `find_lost_events`: `python spark_jobs/find_lost_events.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("find_lost_events"))
