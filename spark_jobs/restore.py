"""The job of the operation `restore`: `python spark_jobs/restore.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("restore"))
