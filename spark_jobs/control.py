"""The job of the operation `control`: `python spark_jobs/control.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("control"))
