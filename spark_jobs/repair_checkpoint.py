"""The job of the operation `repair_checkpoint`: `python spark_jobs/repair_checkpoint.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("repair_checkpoint"))
