"""The job of the operation `silence_alert`: `python spark_jobs/silence_alert.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("silence_alert"))
