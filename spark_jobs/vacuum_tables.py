"""The job of the operation `optimize_tables`: `spark-submit spark_jobs/optimize_tables.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("optimize_tables"))
