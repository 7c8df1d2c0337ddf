"""The job of the operation `start_over`: `python spark_jobs/start_over.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("start_over"))
