"""The job of the operation `redrive`: `python spark_jobs/redrive.py --relay NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("redrive"))
